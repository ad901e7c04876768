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

std::vector<int> step_order(const RegionLayout& layout, StepOrder order) {
    std::vector<int> regions = layout.backward_order();
    if (order == StepOrder::forward) std::reverse(regions.begin(), regions.end());
    return regions;
}

// One rank has every gradient at hand, so it can refuse the whole step if one of them is not finite; several
// would have to wait for the last reduction, and refuse region by region.
bool steps_by_norm_of_all(const OptimizersConfig& config, const Ranks& ranks) {
    return ranks.plan.optimizer_step != OptimizerStep::in_backward && (config.clip > 0 || ranks.size() == 1);
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
      in_backward_(ranks.plan.optimizer_step == OptimizerStep::in_backward),
      by_norm_of_all_(steps_by_norm_of_all(config, ranks)),
      sync_(table, ranks.plan.launch, !by_norm_of_all_, layout_, gradients, reducer_, runtime,
            {.reduced = [this](const Region& region) { take_norm(region); },
             .released =
                 [this](const Region& region) {
                     if (in_backward_) step_region(region);
                 }}),
      unsharder_(table, parameters, reducer_, runtime),
      order_(step_order(layout_, ranks.plan.step_order)),
      regions_of_unit_(static_cast<size_t>(table.num_units())) {
    if (ranks.size() >
        1) {  // before anything is sent: who disagrees would wait for ever, or sum apples and pears
        std::vector<std::string> lines;
        for (const ScheduleRow& row : region_schedule(layout_, ranks)) lines.push_back(row.describe());
        lines.push_back(fmt::format("steps from {}", layout_[order_.front()].name()));
        expect_same_on_all_ranks(*ranks.world, "schedule", lines);
    }
    for (size_t g = 0; g < config.groups.size(); ++g) {
        std::vector<const Region*> members;
        for (const int id : order_) {
            if (layout_[id].group == static_cast<int>(g)) members.push_back(&layout_[id]);
        }
        optimizers_.push_back(
            make_optimizer(config.groups[g], members, parameters, gradients, reducer_, runtime));
    }
    // Behind the terms that the host reads: this rank's own, and a norm and a scale of each region.
    local_terms_ = kNormTerms + layout_.size();
    region_scales_ = local_terms_ + layout_.size();
    num_statistics_ = region_scales_ + 2 * layout_.size();
    statistics_ = Buffer(runtime.device(), "step statistics", MemoryCategory::workspace,
                         num_statistics_ * size_of(DType::f32));
    Device& device = runtime.device();
    for (const Region& region : layout_.all()) {
        for (auto* events : {&reduced_, &stepped_, &gathered_, &copied_})
            events->push_back(device.create_event());
        for (const Piece& piece : region.pieces) {
            std::vector<int>& regions = regions_of_unit_[piece.parameter->unit];
            if (regions.empty() || regions.back() != region.id) regions.push_back(region.id);
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

void OptimizerSet::take_norm(const Region& region) {
    Stream& stream = runtime_.reduce();
    stream.wait(*read_);  // the host has read what the step before wrote to the statistics
    const Tensor term = statistic(local_terms_ + region.id);
    if (layout_.valid(region) > 0) {
        runtime_.ops().norm_term(term, gradients_.part(region), norm_, stream);
    } else {
        runtime_.ops().fill(term, 0.0f, stream);
    }
    stream.record(*reduced_[region.id]);
}

void OptimizerSet::step_region(const Region& region) {
    Stream &optimizer = runtime_.optimizer(), &gather = runtime_.gather();
    StepContext context{.step = microbatch_.step / config_.groups[region.group].every,
                        .lr_factor = microbatch_.lr_factor,
                        .grad_scale = statistic(kCoefficient),
                        .stream = &optimizer};
    if (timeline_) timeline_->mark(optimizer, Phase::step, region.id);
    if (!by_norm_of_all_) {
        optimizer.wait(*reduced_[region.id]);
        sync_.await_release(region, optimizer);
        context.grad_scale = statistic(region_scales_ + 2 * region.id);
        runtime_.ops().clip_coefficient(context.grad_scale, statistic(region_scales_ + 2 * region.id + 1),
                                        statistic(local_terms_ + region.id), 0.0f, norm_, optimizer);
    }
    optimizer.wait(*copied_[region.id]);  // a checkpoint has read what the step changes
    optimizers_[region.group]->step(region, context);
    optimizer.record(*stepped_[region.id]);
    sync_.stepped(region, optimizer);
    if (region.parts == 1 || unsharder_.active()) return;
    if (timeline_) timeline_->mark(gather, Phase::gather, region.id);
    gather.wait(*stepped_[region.id]);
    reducer_.gather(region, gather);
    gather.record(*gathered_[region.id]);
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
    reduce.wait(*read_);
    for (const Region& region : layout_.all()) {  // those that wait for a later step have no gradient
        if (!sync_.due(region)) ops.fill(statistic(local_terms_ + region.id), 0.0f, reduce);
    }
    ops.cast(statistic(kNormTerms, count), statistic(local_terms_, count), reduce);
    reducer_.sum_over_all(statistic(kLossTotal, 2), reduce);
    if (reducer_.sharded()) {
        // Of a gradient that all of them have, one rank's term counts.
        const auto whole = std::count_if(layout_.all().begin(), layout_.all().end(),
                                         [](const Region& region) { return region.parts == 1; });
        if (whole > 0 && ranks_.data_rank() > 0) ops.fill(statistic(kNormTerms, whole), 0.0f, reduce);
        reducer_.reduce_over_parts(statistic(kNormTerms, count),
                                   norm_ == VectorNorm::infinity ? Reduction::max : Reduction::sum, reduce);
    }
    ops.clip_coefficient(statistic(kCoefficient), statistic(kGradNorm), statistic(kNormTerms, count),
                         static_cast<float>(config_.clip), norm_, reduce);
    reduce.record(reduce_done);

    if (by_norm_of_all_) runtime_.optimizer().wait(reduce_done);
    for (const int id : order_) {
        if (!in_backward_ && sync_.due(layout_[id])) step_region(layout_[id]);
    }
    if (layout_.rules().cut_matrices) {  // some were changed after their turn, with the last of their bank
        for (const Region& region : layout_.all()) runtime_.optimizer().record(*stepped_[region.id]);
    }
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
            unit, pass, [this](const Region& region) -> const Event& { return *stepped_[region.id]; });
    }
    if (pass == Pass::backward) return;
    for (const int id : regions_of_unit_[unit]) {
        runtime_.compute().wait(layout_[id].parts > 1 ? *gathered_[id] : *stepped_[id]);
        if (timeline_) timeline_->use(runtime_.compute(), Phase::forward, id);
    }
}

void OptimizerSet::trace(Timeline* timeline) {
    timeline_ = timeline;
    sync_.trace(timeline);
    unsharder_.trace(timeline);
    if (!timeline) return;
    std::vector<TracedRegion> regions;
    for (const Region& region : layout_.all()) regions.push_back({region.name(), {}});
    if (ranks_.size() > 1) {
        const std::vector<ScheduleRow> rows = region_schedule(layout_, ranks_);  // as backward completes them
        const std::vector<int> order = layout_.backward_order();
        for (size_t i = 0; i < order.size(); ++i) {
            for (const PlannedCollective& collective : rows[i].collectives)
                regions[static_cast<size_t>(order[i])].sent.emplace_back(
                    name_of(collective.kind), std::llround(collective.wire_bytes()));
        }
    }
    timeline->describe(std::move(regions));
}

void OptimizerSet::reset() {
    for (auto& optimizer : optimizers_) optimizer->reset(runtime_.compute());
}

std::vector<StatePart> OptimizerSet::state(const Region& region) const {
    std::vector<StatePart> parts = {{{"master"}, parameters_.master_part(region)}};
    for (const StatePart& part : optimizers_[region.group]->state(region)) parts.push_back(part);
    return parts;
}

void OptimizerSet::copy_state(const std::function<void(const Region&, Stream&)>& copy) {
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
    for (const Region& region : layout_.all()) reducer_.gather(region, runtime_.gather());
    runtime_.synchronize();
}

double OptimizerSet::count_nonfinite(const Parameter& p) {
    Stream& stream = runtime_.gather();
    if (unsharder_.active()) {
        for (const int id : layout_.regions_of(p)) reducer_.gather(layout_[id], stream);
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
    const bool in_parts = layout_[layout_.regions_of(p).front()].parts > 1;
    const bool read_in_f32 = p.full_precision || runtime_.real() == DType::f32;  // by compute, all of it
    if (!in_parts || (read_in_f32 && !parameters_.stored_in_parts())) {
        copy(host, in_parts ? parameters_.compute_flat(p).data : parameters_.master(p).data, p.numel());
        return stream.synchronize();
    }
    for (const int id : layout_.regions_of(p)) {
        const Region& region = layout_[id];
        const Buffer whole(runtime_.device(), "gathered master", MemoryCategory::workspace,
                           layout_.padded(region) * size_of(DType::f32));
        reducer_.gather_master(region, whole.tensor(DType::f32, {layout_.padded(region)}), stream);
        for (const Piece& piece : region.pieces) {
            if (piece.parameter != &p) continue;
            copy(static_cast<float*>(host) + piece.in_parameter,
                 static_cast<const float*>(whole.data()) + piece.in_region, piece.count);
        }
        stream.synchronize();
    }
}

}  // namespace speedrun
