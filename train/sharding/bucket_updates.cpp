// Updates of a step: of each bucket, or on a single rank of all buckets together.
#include "train/sharding/bucket_schedule.h"

namespace speedrun {

void BucketSchedule::update(const Bucket& bucket) {
    Stream& optimizer = runtime_.optimizer();
    GroupUpdate& group = *state_.updates()[static_cast<size_t>(bucket.group)];
    StepContext context = context_of(static_cast<size_t>(bucket.group), statistics_.coefficient());
    if (timeline_) timeline_->mark(optimizer, Phase::step, bucket.id);
    if (!by_norm_of_all_) {
        optimizer.wait(*reduced_[bucket.id]);
        optimizer.wait(*values_free_[bucket.id]);
    }
    optimizer.wait(copied(bucket.id));
    time_optimizer([&] {
        if (!by_norm_of_all_) context.grad_scale = statistics_.own_scale(bucket, optimizer);
        const Bucket* const buckets[] = {&bucket};
        group.begin(buckets, context);
    });
    if (!gradients_.memory().accumulators) optimizer.record(*memory_free_[bucket.id]);
    if (group.is_single_phase()) gather_updated(bucket);
}

// Gathers the bucket's updated values on all ranks.
void BucketSchedule::gather_updated(const Bucket& bucket) {
    Stream &optimizer = runtime_.optimizer(), &gather = runtime_.gather();
    optimizer.record(updated(bucket.id));
    if (bucket.num_shards == 1 || gatherer_.active()) return;
    if (timeline_) timeline_->mark(gather, Phase::gather, bucket.id);
    gather.wait(updated(bucket.id));
    reducer_.gather(bucket, gather);
    gather.record(*gathered_[bucket.id]);
}

// Second half of two-phase updates, after the norm of all gradients: ranks that share a matrix either all skip its
// update or all apply it. The order is always that of forward's reads: all buckets are ready together, and the next
// step reads the first one first.
void BucketSchedule::finish_updates(const Event& reduce_done) {
    Stream& optimizer = runtime_.optimizer();
    for (size_t number = 0; number < state_.updates().size(); ++number) {
        GroupUpdate& group = *state_.updates()[number];
        const std::vector<const Bucket*> due = due_of(number, layout_.forward_order());
        if (group.is_single_phase() || due.empty()) continue;
        if (!by_norm_of_all_) optimizer.wait(reduce_done);
        const StepContext context = context_of(number, statistics_.coefficient());
        if (timeline_) timeline_->mark(optimizer, Phase::step);
        time_optimizer([&] { transform(number); });
        for (const Bucket* bucket : due) {
            if (timeline_) timeline_->mark(optimizer, Phase::step, bucket->id);
            const Bucket* const buckets[] = {bucket};
            time_optimizer([&] { group.finish(buckets, context); });
            gather_updated(*bucket);
        }
    }
}

// Its work has no numbers of the step.
void BucketSchedule::transform(size_t group) {
    const StepContext context = context_of(group, statistics_.coefficient());
    sections_.run({-1, static_cast<int>(group)}, [&] { state_.updates()[group]->compute_updates(context); });
}

std::vector<const Bucket*> BucketSchedule::due_of(size_t group, const std::vector<int>& order) const {
    std::vector<const Bucket*> due;
    for (const int id : order)
        if (layout_[id].group == static_cast<int>(group) && is_due(layout_[id])) due.push_back(&layout_[id]);
    return due;
}

void BucketSchedule::update_all() {
    std::vector<bool> due;
    SectionGraphs::Key key;
    for (const Bucket& bucket : layout_.all()) {
        due.push_back(is_due(bucket));
        if (due.back()) key.push_back(bucket.id);
    }
    if (!replays_) return enqueue_update_all(due);
    sections_.run(key, [&] { enqueue_update_all(due); });
}

void BucketSchedule::enqueue_update_all(const std::vector<bool>& due) {
    Stream& optimizer = runtime_.optimizer();
    const size_t groups = state_.updates().size();
    std::vector<const Bucket*> all;
    for (const int id : order_)
        if (due[static_cast<size_t>(id)]) all.push_back(&layout_[id]);
    if (timeline_) timeline_->mark(optimizer, Phase::statistics);
    statistics_.take_norms(all);
    statistics_.combine(due);
    if (timeline_) timeline_->mark(optimizer, Phase::step);
    for (size_t group = 0; group < groups; ++group)
        state_.updates()[group]->begin(due_of(group, order_), context_of(group, statistics_.coefficient()));
    for (size_t group = 0; group < groups; ++group) {
        const std::vector<const Bucket*> buckets = due_of(group, layout_.forward_order());
        if (buckets.empty() || state_.updates()[group]->is_single_phase()) continue;
        transform(group);
        state_.updates()[group]->finish(buckets, context_of(group, statistics_.coefficient()));
    }
}

void BucketSchedule::capture_step(const Microbatch& last) {
    microbatch_ = last;
    sections_.capture([&] {
        if (all_together_ && replays_) return update_all();
        for (size_t group = 0; group < state_.updates().size(); ++group)
            if (!state_.updates()[group]->is_single_phase()) transform(group);
    });
}

StepContext BucketSchedule::context_of(size_t group, const Tensor& grad_scale) const {
    const OptimizerGroupConfig& settings = config_.groups[group];
    return {.step = updates_before(settings, microbatch_.step),
            .lr_factor = microbatch_.lr_factor,
            .point = microbatch_.point,
            .last = updates_in_last(settings, microbatch_.point.left) == 1,
            .grad_scale = grad_scale,
            .numbers = numbers_.of(group),
            .ops = runtime_.ops(),
            .stream = runtime_.optimizer()};
}

void BucketSchedule::step(Event& backward_done, Event& reduce_done) {
    if (!microbatch_.last)
        throw_internal("step {}: gradients of its microbatches are not all reduced", microbatch_.step);
    Stream &compute = runtime_.compute(), &reduce = runtime_.reduce();
    if (timeline_) timeline_->mark(compute, Phase::statistics);
    statistics_.take_loss();
    compute.record(backward_done);
    if (all_together_) {
        Stream& optimizer = runtime_.optimizer();
        optimizer.wait(backward_done);
        optimizer.wait(copied(0));
        update_all();
        optimizer.record(reduce_done);
        optimizer.record(updated(0));
        return state_.scales().renew();
    }
    reduce_pending(backward_done);

    if (timeline_) timeline_->mark(reduce, Phase::statistics);
    std::vector<bool> due;
    for (const Bucket& bucket : layout_.all()) due.push_back(is_due(bucket));
    statistics_.combine(due);
    reduce.record(reduce_done);
    state_.scales().renew();

    if (by_norm_of_all_) runtime_.optimizer().wait(reduce_done);
    for (const int id : order_)
        if (!in_backward_ && is_due(layout_[id])) update(layout_[id]);
    finish_updates(reduce_done);
    gatherer_.forget();
}

void BucketSchedule::read_statistics(float* host, const Event& reduce_done, Event& done) {
    Stream& optimizer = runtime_.optimizer();
    if (timeline_) timeline_->mark(optimizer, Phase::statistics);
    optimizer.wait(reduce_done);
    time_optimizer([&] { statistics_.read(host, optimizer); });
    optimizer.record(done);
}

}  // namespace speedrun
