#include "train/sharding/bucket_schedule.h"

#include <algorithm>
#include <cmath>

namespace speedrun {

namespace {

using Kind = BucketWork::Kind;

// After backward a single rank has every gradient and skips the whole step if one is not finite. Several ranks would
// have to wait for the last reduction, so they skip bucket by bucket.
bool updates_by_norm_of_all(const OptimizersConfig& config, const Ranks& ranks) {
    return ranks.sharing().optimizer_step != OptimizerStep::in_backward &&
           (config.clip > 0 || ranks.size() == 1);
}

// Sizes of the optimizers' numbers.
std::vector<int64_t> counts_of(const ShardedState& state, Runtime& runtime) {
    std::vector<int64_t> counts;
    for (const std::unique_ptr<GroupUpdate>& group : state.updates()) {
        const std::vector<float> numbers =
            group->numbers({.grad_scale = {}, .ops = runtime.ops(), .stream = runtime.optimizer()});
        counts.push_back(static_cast<int64_t>(numbers.size()));
    }
    return counts;
}

}  // namespace

BucketSchedule::BucketSchedule(const OptimizersConfig& config, const ParameterTable& table,
                               const Ranks& ranks, const UpdateStores& stores)
    : PassTracker(table, stores.gradients),
      config_(config),
      ranks_(ranks),
      parameters_(stores.parameters),
      gradients_(stores.gradients),
      reducer_(stores.reducer),
      runtime_(stores.runtime),
      layout_(parameters_.layout()),
      in_backward_(ranks_.sharing().optimizer_step == OptimizerStep::in_backward),
      at_ready_(ranks_.sharing().launch == Launch::ready),
      by_norm_of_all_(updates_by_norm_of_all(config, ranks_)),
      all_together_(ranks_.size() == 1 && !in_backward_),
      capture_(runtime_.device(), runtime_.compute()),
      sections_(runtime_.device(), runtime_.optimizer()),
      gatherer_(table, parameters_, reducer_, runtime_, updated_),
      statistics_(config, ranks_, layout_, gradients_, reducer_, runtime_),
      state_(config, ranks_.sharing().step_order, table, stores),
      replays_(std::all_of(state_.updates().begin(), state_.updates().end(),
                           [](const auto& group) { return group->replays(); })),
      numbers_(counts_of(state_, runtime_), runtime_),
      order_(ranks_.sharing().step_order == StepOrder::reverse ? layout_.backward_order()
                                                               : layout_.forward_order()),
      buckets_of_unit_(static_cast<size_t>(table.num_units())) {
    Device& device = runtime_.device();
    for (const Bucket& bucket : layout_.all()) {
        missing_grads_.push_back(static_cast<int>(bucket.parameters.size()));
        read_values_.push_back(missing_grads_.back());
        for (Events* events :
             {&ready_, &memory_free_, &values_free_, &reduced_, &updated_, &gathered_, &copied_})
            events->push_back(device.create_event());
        for (const Parameter* p : bucket.parameters) {
            std::vector<int>& buckets = buckets_of_unit_[p->unit()];
            if (buckets.empty() || buckets.back() != bucket.id) buckets.push_back(bucket.id);
        }
    }
    microbatch_done_ = device.create_event();
}

bool BucketSchedule::is_due(const Bucket& bucket) const {
    return !bucket.frozen && updates_at(group_of(bucket), microbatch_.step) && !is_unused(bucket);
}

bool BucketSchedule::is_reduced(const Bucket& bucket) const {
    return is_final(bucket) || (gradients_.memory().accumulators && bucket.num_shards > 1 && !bucket.frozen);
}

void BucketSchedule::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    std::vector<bool> fresh;
    for (const OptimizerGroupConfig& group : config_.groups)
        fresh.push_back(group.frozen() || (microbatch.first && begins_period(group, microbatch.step)));
    begin_pass(fresh, microbatch.unused);
    if (microbatch.first && !capture_.active()) write_numbers();
}

void BucketSchedule::write_numbers() {
    std::vector<std::vector<float>> values;
    for (size_t group = 0; group < state_.updates().size(); ++group)
        values.push_back(state_.updates()[group]->numbers(context_of(group, {})));
    numbers_.write(values);
}

void BucketSchedule::launch(const CapturedMicrobatch& captured) {
    if (microbatch_.first && !gatherer_.active()) await_unit(0);  // waits inside a graph are not timed
    for (const CapturedMicrobatch::Part& part : captured.parts) {
        part.graph->launch(runtime_.compute());
        for (const BucketWork& work : part.others) run(work);
    }
    mark_contributions();
}

void BucketSchedule::enqueue(BucketWork work) {
    if (!capture_.record(work)) run(work);
}

void BucketSchedule::await(BucketWork work) {
    if (!capture_.record_wait(work)) run(work);
}

void BucketSchedule::run(BucketWork work) {
    switch (work.kind) {
        case Kind::reduce:
            return reduce(layout_[work.index]);
        case Kind::reduce_pending:
            return reduce_pending(*microbatch_done_);
        case Kind::hold:
            return pending_.push_back(&layout_[work.index]);
        case Kind::update:
            return update(layout_[work.index]);
        case Kind::fetch_missing:
            return gatherer_.fetch_missing(work.index);
        case Kind::fetch_ahead:
            return gatherer_.fetch_ahead(work.index);
        case Kind::await_memory:
            return await_memory(layout_[work.index]);
        case Kind::await_unit:
            return await_unit(work.index);
        case Kind::await_parameters:
            return gatherer_.await(work.index);
    }
}

void BucketSchedule::enter(int unit, Pass pass) {
    if (gatherer_.active()) {
        const int stage = gatherer_.reach(unit, pass);
        enqueue({Kind::fetch_missing, stage});
        if (gatherer_.reads(stage)) await({Kind::await_parameters, stage});
        gatherer_.mark_use(stage, pass);
        return enqueue({Kind::fetch_ahead, stage});
    }
    if (pass == Pass::backward) return;
    await({Kind::await_unit, unit});
    if (!timeline_) return;
    for (const int id : buckets_of_unit_[unit]) timeline_->use(runtime_.compute(), Phase::forward, id);
}

void BucketSchedule::await_unit(int unit) {
    if (all_together_ && unit > 0) return;
    reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
        if (all_together_) return runtime_.compute().wait(updated(0));
        for (const int id : buckets_of_unit_[unit])
            runtime_.compute().wait(layout_[id].num_shards > 1 ? *gathered_[id] : updated(id));
    });
}

void BucketSchedule::on_bucket_begin(const Bucket& bucket) {
    if (!gradients_.overlapping(bucket).empty()) await({Kind::await_memory, bucket.id});
    fill_gaps(bucket);
}

// The reduce stream may still read other buckets in this memory, or this bucket's previous gradient.
void BucketSchedule::await_memory(const Bucket& bucket) {
    reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
        for (const int id : gradients_.overlapping(bucket)) runtime_.compute().wait(*memory_free_[id]);
    });
}

// Gaps between parameters are reduced and updated with them, so they must be zero.
void BucketSchedule::fill_gaps(const Bucket& bucket) {
    const Tensor whole = gradients_.whole(bucket);
    for (size_t i = 1; i < bucket.parameters.size(); ++i) {
        const Parameter& before = *bucket.parameters[i - 1];
        const int64_t begin = layout_.in_bucket(before) + before.numel();
        const int64_t count = layout_.in_bucket(*bucket.parameters[i]) - begin;
        if (count > 0)
            runtime_.ops().fill({.x = elements(whole, {begin, count}), .value = 0.0f}, runtime_.compute());
    }
}

void BucketSchedule::on_grad_ready(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!is_reduced(bucket) || --missing_grads_[bucket.id] > 0) return;
    missing_grads_[bucket.id] = static_cast<int>(bucket.parameters.size());
    if (at_ready_ && !all_together_) runtime_.compute().record(*ready_[bucket.id]);
    if (timeline_) timeline_->ready(runtime_.compute(), bucket.id);
    if (all_together_) return;
    enqueue({at_ready_ ? Kind::reduce : Kind::hold, bucket.id});
}

void BucketSchedule::on_param_free(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!is_final(bucket) || --read_values_[bucket.id] > 0) return;
    read_values_[bucket.id] = static_cast<int>(bucket.parameters.size());
    if (!by_norm_of_all_) runtime_.compute().record(*values_free_[bucket.id]);
    if (in_backward_) enqueue({Kind::update, bucket.id});
}

void BucketSchedule::end_microbatch() {
    if (microbatch_.last || at_ready_ || !gradients_.memory().accumulators) return;
    runtime_.compute().record(*microbatch_done_);
    enqueue({Kind::reduce_pending});
}

void BucketSchedule::reduce_pending(const Event& backward_done) {
    runtime_.reduce().wait(backward_done);
    for (const Bucket* bucket : pending_) reduce(*bucket);
    pending_.clear();
}

void BucketSchedule::reduce(const Bucket& bucket) {
    Stream& stream = runtime_.reduce();
    if (timeline_) timeline_->mark(stream, Phase::reduce, bucket.id);
    if (at_ready_) stream.wait(*ready_[bucket.id]);
    const bool first = microbatch_.first && begins_period(group_of(bucket), microbatch_.step);
    reducer_.reduce(bucket, first, is_final(bucket), stream);
    if (gradients_.memory().accumulators) stream.record(*memory_free_[bucket.id]);
    if (!is_final(bucket)) return;
    const Bucket* const buckets[] = {&bucket};
    statistics_.take_norms(buckets);
    stream.record(*reduced_[bucket.id]);
}

void BucketSchedule::trace(Timeline* timeline) {
    timeline_ = timeline;
    gatherer_.trace(timeline);
    if (!timeline) return;
    std::vector<TracedBucket> buckets;
    for (const Bucket& bucket : layout_.all()) buckets.push_back({bucket.name(), {}});
    if (ranks_.size() > 1) {
        for (const BucketCollectives& row : reducer_.collectives()) {
            if (row.bucket < 0) continue;
            for (const StepCollective& collective : row.collectives)
                if (times_per_step(collective.when, 1) > 0)
                    buckets[static_cast<size_t>(row.bucket)].sent.emplace_back(
                        name_of(collective.kind), std::llround(collective.sent_bytes));
        }
    }
    timeline->describe(std::move(buckets));
}

void BucketSchedule::copy_state(const StateCopies& copies) {
    Stream& stream = runtime_.copy();
    const auto enqueue_all = [&](const std::vector<HostCopy>& all) {
        for (const HostCopy& copy : all)
            runtime_.device().copy(copy.to, copy.from.data, copy.from.bytes(), stream);
    };
    for (const int id : order_) {
        stream.wait(updated(id));
        enqueue_all(copies.buckets[static_cast<size_t>(id)]);
        stream.record(copied(id));
    }
    state_.scales().begin_copy(stream);
    enqueue_all(copies.scales);
    state_.scales().end_copy(stream);
}

void BucketSchedule::copy(const Parameter& from, const Parameter& to) {
    const Bucket &source = layout_.bucket_of(from), &target = layout_.bucket_of(to);
    if (source.count != target.count || source.group != target.group || source.parameters.size() != 1)
        throw_internal("{} cannot become {}", target.name(), source.name());
    Stream& stream = runtime_.optimizer();
    const auto copy_values = [&](const Tensor& into, const Tensor& values) {
        runtime_.device().copy(into.data, values.data, values.bytes(), stream);
    };
    stream.wait(copied(target.id));
    const std::vector<StateShard> values = state_.shards(source), into = state_.shards(target);
    for (size_t i = 0; i < values.size(); ++i) copy_values(into[i].values, values[i].values);
    if (parameters_.copied(source))
        copy_values(parameters_.compute_padded_shard(target), parameters_.compute_padded_shard(source));
    gather_updated(target);
}

void BucketSchedule::gather_all() {
    runtime_.synchronize();
    gatherer_.forget();
    if (gatherer_.active()) return;  // each pass gathers its own reads
    for (const Bucket& bucket : layout_.all()) reducer_.gather(bucket, runtime_.gather());
    runtime_.synchronize();
}

void BucketSchedule::gather(const Bucket& bucket) {
    if (!gatherer_.active()) return;
    reducer_.gather(bucket, runtime_.gather());
    gatherer_.forget();
}

}  // namespace speedrun
