#include "train/sharding/update_pipeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/config/update_period.h"

namespace speedrun {

namespace {

// One rank has every gradient at hand, so it can refuse the whole step if one of them is not finite; several
// would have to wait for the last reduction, and refuse bucket by bucket.
bool steps_by_norm_of_all(const OptimizersConfig& config, const Ranks& ranks) {
    return ranks.sharing().optimizer_step != OptimizerStep::in_backward &&
           (config.clip > 0 || ranks.size() == 1);
}

}  // namespace

UpdatePipeline::UpdatePipeline(const OptimizersConfig& config, const UpdateContext& context)
    : config_(config),
      ranks_(context.ranks),
      parameters_(context.stores.parameters),
      gradients_(context.stores.gradients),
      reducer_(context.stores.reducer),
      runtime_(context.stores.runtime),
      capture_(context.capture),
      layout_(parameters_.layout()),
      in_backward_(ranks_.sharing().optimizer_step == OptimizerStep::in_backward),
      by_norm_of_all_(steps_by_norm_of_all(config, ranks_)),
      sync_(ranks_.sharing().launch, !by_norm_of_all_, layout_, gradients_, reducer_, runtime_, capture_),
      unsharder_(context.table, parameters_, reducer_, runtime_, capture_),
      statistics_(config, ranks_, layout_, gradients_, reducer_, runtime_),
      scales_(context.table.scales(), reducer_, runtime_),
      groups_(make_group_updates(config, ranks_.sharing().step_order, context.stores)),
      order_(ranks_.sharing().step_order == StepOrder::reverse ? layout_.backward_order()
                                                               : layout_.forward_order()),
      buckets_of_unit_(static_cast<size_t>(context.table.num_units())) {
    Device& device = runtime_.device();
    for (const Bucket& bucket : layout_.all()) {
        for (auto* events : {&reduced_, &stepped_, &gathered_, &copied_})
            events->push_back(device.create_event());
        for (const Piece& piece : bucket.pieces) {
            std::vector<int>& buckets = buckets_of_unit_[piece.parameter->unit()];
            if (buckets.empty() || buckets.back() != bucket.id) buckets.push_back(bucket.id);
        }
    }
    microbatch_done_ = device.create_event();
    gradients_.observe(this);
}

void UpdatePipeline::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    GradientSync::Microbatch gradients{
        .first = microbatch.first, .last = microbatch.last, .fresh = {}, .due = {}};
    for (const OptimizerGroupConfig& group : config_.groups) {
        gradients.fresh.push_back(begins_period(group, microbatch.step));
        gradients.due.push_back(updates_at(group, microbatch.step));
    }
    sync_.begin_microbatch(gradients);
}

void UpdatePipeline::entered(int unit, Pass pass) {
    if (unsharder_.active()) return unsharder_.enter(unit, pass, stepped_);
    if (pass == Pass::backward) return;
    await_unit(unit);
    if (!timeline_) return;
    for (const int id : buckets_of_unit_[unit]) timeline_->use(runtime_.compute(), Phase::forward, id);
}

void UpdatePipeline::await_unit(int unit) {
    if (unsharder_.active()) return;
    capture_.await([this, unit] {
        reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
            for (const int id : buckets_of_unit_[unit])
                runtime_.compute().wait(layout_[id].num_shards > 1 ? *gathered_[id] : *stepped_[id]);
        });
    });
}

void UpdatePipeline::begun(const Bucket& bucket) {
    sync_.await_memory(bucket);
}

void UpdatePipeline::ready(const Parameter& p) {
    const Bucket* const bucket = sync_.ready(p);
    if (!bucket) return;
    capture_.on_others([this, bucket] {
        if (ranks_.sharing().launch == Launch::ready) {
            reduce(*bucket);
        } else {
            waiting_.push_back(bucket);
        }
    });
}

void UpdatePipeline::released(const Parameter& p) {
    const Bucket* const bucket = sync_.released(p);
    if (bucket && in_backward_) capture_.on_others([this, bucket] { step_bucket(*bucket); });
}

void UpdatePipeline::end_microbatch() {
    if (microbatch_.last || ranks_.sharing().launch == Launch::ready || !gradients_.memory().accumulators)
        return;
    runtime_.compute().record(*microbatch_done_);
    capture_.on_others([this] { reduce_waiting(*microbatch_done_); });
}

void UpdatePipeline::reduce_waiting(const Event& backward_done) {
    runtime_.reduce().wait(backward_done);
    for (const Bucket* bucket : waiting_) reduce(*bucket);
    waiting_.clear();
}

void UpdatePipeline::reduce(const Bucket& bucket) {
    sync_.reduce(bucket);
    if (!sync_.final(bucket)) return;
    statistics_.take_norm(bucket);
    runtime_.reduce().record(*reduced_[bucket.id]);
}

void UpdatePipeline::step_bucket(const Bucket& bucket) {
    Stream& optimizer = runtime_.optimizer();
    StepContext context = context_of(bucket, statistics_.coefficient());
    if (timeline_) timeline_->mark(optimizer, Phase::step, bucket.id);
    if (!by_norm_of_all_) {
        optimizer.wait(*reduced_[bucket.id]);
        sync_.await_release(bucket, optimizer);
    }
    optimizer.wait(*copied_[bucket.id]);  // a checkpoint has read what the step changes
    time_optimizer([&] {
        if (!by_norm_of_all_) context.grad_scale = statistics_.own_scale(bucket, optimizer);
        groups_[bucket.group]->begin(bucket, context);
    });
    sync_.stepped(bucket, optimizer);
    if (groups_[bucket.group]->at_once()) publish(bucket);
}

// Its new values go to the ranks that lack them.
void UpdatePipeline::publish(const Bucket& bucket) {
    Stream &optimizer = runtime_.optimizer(), &gather = runtime_.gather();
    optimizer.record(*stepped_[bucket.id]);
    if (bucket.num_shards == 1 || unsharder_.active()) return;
    if (timeline_) timeline_->mark(gather, Phase::gather, bucket.id);
    gather.wait(*stepped_[bucket.id]);
    reducer_.gather(bucket, gather);
    gather.record(*gathered_[bucket.id]);
}

// The second half of what did not end at once, behind the norm of all gradients: ranks that share a matrix
// must all refuse its step, or none. Whatever the step order, in the order in which forward reads the
// buckets: they are all ready at the same time, and the next step begins when the first has come.
void UpdatePipeline::finish_steps(const Event& reduce_done) {
    Stream& optimizer = runtime_.optimizer();
    for (size_t group = 0; group < groups_.size(); ++group) {
        std::vector<int> due;
        for (const int id : layout_.forward_order())
            if (layout_[id].group == static_cast<int>(group) && sync_.due(layout_[id])) due.push_back(id);
        if (groups_[group]->at_once() || due.empty()) continue;
        if (!by_norm_of_all_) optimizer.wait(reduce_done);
        const StepContext context = context_of(layout_[due.front()], statistics_.coefficient());
        if (timeline_) timeline_->mark(optimizer, Phase::step);
        time_optimizer([&] { groups_[group]->compute_updates(context); });
        for (const int id : due) {
            if (timeline_) timeline_->mark(optimizer, Phase::step, id);
            time_optimizer([&] { groups_[group]->finish(layout_[id], context); });
            publish(layout_[id]);
        }
    }
}

StepContext UpdatePipeline::context_of(const Bucket& bucket, const Tensor& grad_scale) const {
    return {.step = updates_before(config_.groups[bucket.group], microbatch_.step),
            .lr_factor = microbatch_.lr_factor,
            .point = microbatch_.point,
            .grad_scale = grad_scale,
            .ops = runtime_.ops(),
            .stream = runtime_.optimizer()};
}

void UpdatePipeline::step(Event& backward_done, Event& reduce_done) {
    if (!microbatch_.last)
        throw_internal("step {}: gradients of its microbatches are not all reduced", microbatch_.step);
    Stream &compute = runtime_.compute(), &reduce = runtime_.reduce();
    if (timeline_) timeline_->mark(compute, Phase::statistics);
    statistics_.take_loss();
    compute.record(backward_done);
    reduce_waiting(backward_done);

    if (timeline_) timeline_->mark(reduce, Phase::statistics);
    std::vector<bool> due;  // those that wait for a later step have no gradient
    for (const Bucket& bucket : layout_.all()) due.push_back(sync_.due(bucket));
    statistics_.combine(due);
    reduce.record(reduce_done);
    scales_.renew();

    if (by_norm_of_all_) runtime_.optimizer().wait(reduce_done);
    for (const int id : order_) {
        if (!in_backward_ && sync_.due(layout_[id])) step_bucket(layout_[id]);
    }
    finish_steps(reduce_done);
    unsharder_.forget();
}

void UpdatePipeline::read_statistics(float* host, const Event& reduce_done, Event& done) {
    Stream& optimizer = runtime_.optimizer();
    if (timeline_) timeline_->mark(optimizer, Phase::statistics);
    optimizer.wait(reduce_done);
    time_optimizer([&] { statistics_.read(host, optimizer); });
    optimizer.record(done);
}

void UpdatePipeline::trace(Timeline* timeline) {
    timeline_ = timeline;
    sync_.trace(timeline);
    unsharder_.trace(timeline);
    if (!timeline) return;
    std::vector<TracedBucket> buckets;
    for (const Bucket& bucket : layout_.all()) buckets.push_back({bucket.name(), {}});
    if (ranks_.size() > 1) {
        for (const CollectiveRow& row : reducer_.collectives()) {
            if (row.bucket < 0) continue;
            for (const StepCollective& collective : row.collectives)
                buckets[static_cast<size_t>(row.bucket)].sent.emplace_back(
                    name_of(collective.kind), std::llround(collective.sent_bytes));
        }
    }
    timeline->describe(std::move(buckets));
}

void UpdatePipeline::reset() {
    for (auto& group : groups_) group->reset(runtime_.compute());
    scales_.reset(runtime_.compute());
}

std::vector<StateShard> UpdatePipeline::state(const Bucket& bucket) const {
    std::vector<StateShard> shards = {
        {{.name = "master", .dtype = bucket.master}, parameters_.master_shard(bucket)}};
    for (const StateShard& shard : groups_[bucket.group]->state(bucket)) shards.push_back(shard);
    return shards;
}

void UpdatePipeline::copy_state(const StateCopy& copy) {
    Stream& stream = runtime_.copy();
    for (const int id : order_) {
        stream.wait(*stepped_[id]);
        copy.bucket(layout_[id], stream);
        stream.record(*copied_[id]);
    }
    scales_.copy_state(copy.scales);
}

void UpdatePipeline::copy(const Parameter& from, const Parameter& to) {
    const Bucket &source = layout_.bucket_of(from), &target = layout_.bucket_of(to);
    if (source.count != target.count || source.group != target.group || source.pieces.size() != 1)
        throw_internal("{} cannot become {}", target.name(), source.name());
    Stream& stream = runtime_.optimizer();
    const auto put = [&](const Tensor& into, const Tensor& values) {
        runtime_.device().copy(into.data, values.data, values.bytes(), stream);
    };
    stream.wait(*copied_[target.id]);  // a checkpoint has read it
    const std::vector<StateShard> values = state(source), into = state(target);
    for (size_t i = 0; i < values.size(); ++i) put(into[i].values, values[i].values);
    if (parameters_.copied(source))
        put(parameters_.compute_padded_shard(target), parameters_.compute_padded_shard(source));
    publish(target);
}

void UpdatePipeline::gather_all() {
    runtime_.synchronize();
    unsharder_.forget();
    if (unsharder_.active()) return;  // gathered when they are needed
    for (const Bucket& bucket : layout_.all()) reducer_.gather(bucket, runtime_.gather());
    runtime_.synchronize();
}

double UpdatePipeline::count_nonfinite() {
    runtime_.synchronize();
    Stream& stream = runtime_.gather();
    const auto buckets = static_cast<int64_t>(layout_.all().size());
    const Buffer memory(runtime_.device(), "values that are not finite", MemoryCategory::workspace,
                        buckets * size_of(DType::f32));
    for (const Bucket& bucket : layout_.all()) {
        const Tensor masters = parameters_.master_shard(bucket);
        if (masters.numel() == 0) continue;
        const Tensor count = memory.tensor(DType::f32, {1}, bucket.id * size_of(DType::f32));
        runtime_.ops().count_nonfinite({.out = count, .x = masters}, stream);
    }
    std::vector<float> counts(static_cast<size_t>(buckets));
    runtime_.device().copy(counts.data(), memory.data(), memory.bytes(), stream);
    stream.synchronize();
    return std::accumulate(counts.begin(), counts.end(), 0.0);
}

double UpdatePipeline::count_nonfinite(const Parameter& p) {
    Stream& stream = runtime_.gather();
    if (unsharder_.active()) {
        reducer_.gather(layout_.bucket_of(p), stream);
        unsharder_.forget();
    }
    float bad = 0;
    const Buffer memory(runtime_.device(), "values that are not finite", MemoryCategory::workspace,
                        size_of(DType::f32));
    const Tensor count = memory.tensor(DType::f32, {1});
    runtime_.ops().count_nonfinite({.out = count, .x = parameters_.compute_flat(p)}, stream);
    runtime_.device().copy(&bad, count.data, count.bytes(), stream);
    stream.synchronize();
    return bad;
}

}  // namespace speedrun
