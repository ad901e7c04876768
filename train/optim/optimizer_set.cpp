#include "train/optim/optimizer_set.h"

#include <algorithm>
#include <cmath>

namespace speedrun {

namespace {

VectorNorm vector_norm(const std::string& clip_norm) {
    if (clip_norm == "1") return VectorNorm::one;
    if (clip_norm == "2") return VectorNorm::two;
    if (clip_norm == "3") return VectorNorm::three;
    if (clip_norm == "inf") return VectorNorm::infinity;
    throw_internal("optimizers.clip_norm {} is none of 1, 2, 3, inf", clip_norm);
}

std::vector<int> step_order(const BucketLayout& layout, StepOrder order) {
    std::vector<int> buckets = layout.backward_order();
    if (order == StepOrder::forward) std::reverse(buckets.begin(), buckets.end());
    return buckets;
}

// One rank has every gradient at hand, so it can refuse the whole step if one of them is not finite; several
// would have to wait for the last reduction, and refuse bucket by bucket.
bool steps_by_norm_of_all(const OptimizersConfig& config, const Ranks& ranks) {
    return ranks.plan().optimizer_step != OptimizerStep::in_backward &&
           (config.clip > 0 || ranks.size() == 1);
}

}  // namespace

OptimizerSet::OptimizerSet(const OptimizersConfig& config, const ParameterTable& table, const Ranks& ranks,
                           ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : config_(config),
      norm_(vector_norm(config.clip_norm)),
      table_(table),
      ranks_(ranks),
      parameters_(parameters),
      gradients_(gradients),
      runtime_(runtime),
      layout_(parameters.layout()),
      reducer_(ranks, parameters, gradients, runtime),
      in_backward_(ranks.plan().optimizer_step == OptimizerStep::in_backward),
      by_norm_of_all_(steps_by_norm_of_all(config, ranks)),
      sync_(table, ranks.plan().launch, !by_norm_of_all_, layout_, gradients, reducer_, runtime,
            {.reduced = [this](const Bucket& bucket) { take_norm(bucket); },
             .released =
                 [this](const Bucket& bucket) {
                     if (in_backward_) step_bucket(bucket);
                 }}),
      unsharder_(table, parameters, reducer_, runtime),
      order_(step_order(layout_, ranks.plan().step_order)),
      buckets_of_unit_(static_cast<size_t>(table.num_units())) {
    for (size_t g = 0; g < config.groups.size(); ++g) {
        std::vector<const Bucket*> members;
        for (const int id : order_) {
            if (layout_[id].group == static_cast<int>(g)) members.push_back(&layout_[id]);
        }
        optimizers_.push_back(
            make_optimizer(config.groups[g], members, parameters, gradients, reducer_, runtime));
    }
    // Behind the terms that the host reads: this rank's own, and a norm and a scale of each bucket.
    local_terms_ = kNormTerms + layout_.size();
    bucket_scales_ = local_terms_ + layout_.size();
    num_statistics_ = bucket_scales_ + 2 * layout_.size();
    statistics_ = Buffer(runtime.device(), "step statistics", MemoryCategory::workspace,
                         num_statistics_ * size_of(DType::f32));
    Device& device = runtime.device();
    for (const Bucket& bucket : layout_.all()) {
        for (auto* events : {&reduced_, &stepped_, &gathered_, &copied_})
            events->push_back(device.create_event());
        for (const Piece& piece : bucket.pieces) {
            std::vector<int>& buckets = buckets_of_unit_[piece.parameter->unit];
            if (buckets.empty() || buckets.back() != bucket.id) buckets.push_back(bucket.id);
        }
    }
    read_ = device.create_event();
}

void OptimizerSet::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    GradientSync::Microbatch gradients{
        .first = microbatch.first, .last = microbatch.last, .fresh = {}, .due = {}};
    for (const OptimizerGroupConfig& group : config_.groups) {
        gradients.fresh.push_back(microbatch.step % group.every == 0);
        gradients.due.push_back((microbatch.step + 1) % group.every == 0);
    }
    sync_.begin_microbatch(gradients);
}

void OptimizerSet::take_norm(const Bucket& bucket) {
    Stream& stream = runtime_.reduce();
    const Tensor term = statistic(local_terms_ + bucket.id);
    if (layout_.valid(bucket) > 0) {
        runtime_.ops().norm_term(term, gradients_.part(bucket), norm_, stream);
    } else {
        runtime_.ops().fill(term, 0.0f, stream);
    }
    stream.record(*reduced_[bucket.id]);
}

void OptimizerSet::step_bucket(const Bucket& bucket) {
    Stream& optimizer = runtime_.optimizer();
    StepContext context = context_of(bucket, statistic(kCoefficient));
    if (timeline_) timeline_->mark(optimizer, Phase::step, bucket.id);
    if (!by_norm_of_all_) {
        optimizer.wait(*reduced_[bucket.id]);
        sync_.await_release(bucket, optimizer);
        context.grad_scale = statistic(bucket_scales_ + 2 * bucket.id);
        runtime_.ops().clip_coefficient(context.grad_scale, statistic(bucket_scales_ + 2 * bucket.id + 1),
                                        statistic(local_terms_ + bucket.id), 0.0f, norm_, optimizer);
    }
    optimizer.wait(*copied_[bucket.id]);  // a checkpoint has read what the step changes
    optimizers_[bucket.group]->begin(bucket, context);
    sync_.stepped(bucket, optimizer);
    if (optimizers_[bucket.group]->at_once()) publish(bucket);
}

// Its new values go to the ranks that lack them.
void OptimizerSet::publish(const Bucket& bucket) {
    Stream &optimizer = runtime_.optimizer(), &gather = runtime_.gather();
    optimizer.record(*stepped_[bucket.id]);
    if (bucket.parts == 1 || unsharder_.active()) return;
    if (timeline_) timeline_->mark(gather, Phase::gather, bucket.id);
    gather.wait(*stepped_[bucket.id]);
    reducer_.gather(bucket, gather);
    gather.record(*gathered_[bucket.id]);
}

// The second half of what did not end at once, behind the norm of all gradients: ranks that share a matrix
// must all refuse its step, or none.
void OptimizerSet::finish_steps(const Event& reduce_done) {
    Stream& optimizer = runtime_.optimizer();
    for (size_t group = 0; group < optimizers_.size(); ++group) {
        std::vector<int> due;
        for (const int id : order_)
            if (layout_[id].group == static_cast<int>(group) && sync_.due(layout_[id])) due.push_back(id);
        if (optimizers_[group]->at_once() || due.empty()) continue;
        if (!by_norm_of_all_) optimizer.wait(reduce_done);
        const StepContext context = context_of(layout_[due.front()], statistic(kCoefficient));
        if (timeline_) timeline_->mark(optimizer, Phase::step);
        optimizers_[group]->compute_updates(context);
        for (const int id : due) {
            if (timeline_) timeline_->mark(optimizer, Phase::step, id);
            optimizers_[group]->finish(layout_[id], context);
            publish(layout_[id]);
        }
    }
}

StepContext OptimizerSet::context_of(const Bucket& bucket, const Tensor& grad_scale) const {
    return {.step = microbatch_.step / config_.groups[bucket.group].every,
            .lr_factor = microbatch_.lr_factor,
            .grad_scale = grad_scale,
            .stream = &runtime_.optimizer()};
}

void OptimizerSet::step(bool stop, Event& backward_done, Event& reduce_done) {
    if (!microbatch_.last)
        throw_internal("step {}: gradients of its microbatches are not all reduced", microbatch_.step);
    Ops& ops = runtime_.ops();
    Stream &compute = runtime_.compute(), &reduce = runtime_.reduce();
    if (timeline_) timeline_->mark(compute, Phase::statistics);
    compute.wait(*read_);
    ops.cast(statistic(kLossTotal), statistic(kLossSum), compute);
    ops.fill(statistic(kStop), stop ? 1.0f : 0.0f, compute);
    compute.record(backward_done);
    sync_.launch_waiting(backward_done);

    const int64_t count = layout_.size();
    if (timeline_) timeline_->mark(reduce, Phase::statistics);
    reduce.wait(*read_);                          // the host has read the terms of the step before
    for (const Bucket& bucket : layout_.all()) {  // those that wait for a later step have no gradient
        if (!sync_.due(bucket)) ops.fill(statistic(local_terms_ + bucket.id), 0.0f, reduce);
    }
    ops.cast(statistic(kNormTerms, count), statistic(local_terms_, count), reduce);
    reducer_.sum_over_all(statistic(kLossTotal, 2), reduce);
    if (reducer_.sharded()) {
        // Gradients that all of them have count once.
        for (const Bucket& bucket : layout_.all()) {
            if (bucket.parts == 1 && ranks_.data_rank() > 0)
                ops.fill(statistic(kNormTerms + bucket.id), 0.0f, reduce);
        }
        reducer_.reduce_over_parts(statistic(kNormTerms, count),
                                   norm_ == VectorNorm::infinity ? Reduction::max : Reduction::sum, reduce);
    }
    ops.clip_coefficient(statistic(kCoefficient), statistic(kGradNorm), statistic(kNormTerms, count),
                         static_cast<float>(config_.clip), norm_, reduce);
    reduce.record(reduce_done);

    if (by_norm_of_all_) runtime_.optimizer().wait(reduce_done);
    for (const int id : order_) {
        if (!in_backward_ && sync_.due(layout_[id])) step_bucket(layout_[id]);
    }
    finish_steps(reduce_done);
    unsharder_.forget();
}

void OptimizerSet::read_statistics(float* host, const Event& reduce_done, Event& done) {
    Stream& optimizer = runtime_.optimizer();
    if (timeline_) timeline_->mark(optimizer, Phase::statistics);
    optimizer.wait(reduce_done);
    if (!runtime_.device().dry()) {
        // Not the first: the next backward writes it, on compute.
        const Tensor read = statistic(kLossTotal, kNormTerms + layout_.size() - kLossTotal);
        runtime_.device().copy(host + kLossTotal, read.data, read.bytes(), optimizer);
    }
    optimizer.record(*read_);
    optimizer.record(done);
}

void OptimizerSet::await_unit(int unit, Pass pass) {
    if (unsharder_.active()) {
        return unsharder_.enter(
            unit, pass, [this](const Bucket& bucket) -> const Event& { return *stepped_[bucket.id]; });
    }
    if (pass == Pass::backward) return;
    for (const int id : buckets_of_unit_[unit]) {
        runtime_.compute().wait(layout_[id].parts > 1 ? *gathered_[id] : *stepped_[id]);
        if (timeline_) timeline_->use(runtime_.compute(), Phase::forward, id);
    }
}

void OptimizerSet::trace(Timeline* timeline) {
    timeline_ = timeline;
    sync_.trace(timeline);
    unsharder_.trace(timeline);
    if (!timeline) return;
    std::vector<TracedBucket> buckets;
    for (const Bucket& bucket : layout_.all()) buckets.push_back({bucket.name(), {}});
    if (ranks_.size() > 1) {
        for (const ScheduleRow& row : reducer_.schedule()) {
            if (row.bucket < 0) continue;
            for (const PlannedCollective& collective : row.collectives)
                buckets[static_cast<size_t>(row.bucket)].sent.emplace_back(
                    name_of(collective.kind), std::llround(collective.sent_bytes));
        }
    }
    timeline->describe(std::move(buckets));
}

void OptimizerSet::reset() {
    for (auto& optimizer : optimizers_) optimizer->reset(runtime_.compute());
}

std::vector<StatePart> OptimizerSet::state(const Bucket& bucket) const {
    std::vector<StatePart> parts = {{{"master"}, parameters_.master_part(bucket)}};
    for (const StatePart& part : optimizers_[bucket.group]->state(bucket)) parts.push_back(part);
    return parts;
}

void OptimizerSet::copy_state(const std::function<void(const Bucket&, Stream&)>& copy) {
    Stream& stream = runtime_.copy();
    for (const int id : order_) {
        stream.wait(*stepped_[id]);
        copy(layout_[id], stream);
        stream.record(*copied_[id]);
    }
}

void OptimizerSet::gather_all() {
    runtime_.synchronize();
    unsharder_.forget();
    if (unsharder_.active()) return;  // gathered when they are needed
    for (const Bucket& bucket : layout_.all()) reducer_.gather(bucket, runtime_.gather());
    runtime_.synchronize();
}

double OptimizerSet::count_nonfinite(const Parameter& p) {
    Stream& stream = runtime_.gather();
    if (unsharder_.active()) {
        reducer_.gather(layout_.bucket_of(p), stream);
        unsharder_.forget();
    }
    float bad = 0;
    const Tensor count = statistic(kCoefficient);
    runtime_.ops().count_nonfinite(count, parameters_.compute_flat(p), stream);
    runtime_.device().copy(&bad, count.data, count.bytes(), stream);
    stream.synchronize();
    return bad;
}

void OptimizerSet::read_master(const Parameter& p, void* host) {
    Stream& stream = runtime_.gather();
    const auto copy = [&](void* to, const void* from, int64_t elements) {
        runtime_.device().copy(to, from, elements * size_of(DType::f32), stream);
    };
    const Bucket& bucket = layout_.bucket_of(p);
    const bool in_parts = bucket.parts > 1;
    const bool read_in_f32 = p.full_precision || runtime_.real() == DType::f32;  // by compute, all of it
    if (!in_parts || (read_in_f32 && !parameters_.stored_in_parts())) {
        copy(host, in_parts ? parameters_.compute_flat(p).data : parameters_.master(p).data, p.numel());
        return stream.synchronize();
    }
    const Buffer whole(runtime_.device(), "gathered master", MemoryCategory::workspace,
                       layout_.padded(bucket) * size_of(DType::f32));
    reducer_.gather_master(bucket, whole.tensor(DType::f32, {layout_.padded(bucket)}), stream);
    copy(host, static_cast<const float*>(whole.data()) + layout_.in_bucket(p), p.numel());
    stream.synchronize();
}

}  // namespace speedrun
