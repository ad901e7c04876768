#include "train/sharding/placement.h"

#include "kernels/device/error.h"

namespace speedrun {

namespace {

using enum Axis;

constexpr Placement kFull = Placement::replicate();
constexpr Placement kCut = Placement::shard(0);
constexpr std::array<StrategySpec, 4> kRows{{
    // strategy       stored state  local  reduce_scatter  default accumulate  default reshard
    {Strategy::ddp, kFull, kFull, true, false, Accumulate::local, Reshard::no},
    {Strategy::zero1, kFull, kCut, true, false, Accumulate::local, Reshard::no},
    {Strategy::zero2, kFull, kCut, false, true, Accumulate::reduce_scatter, Reshard::no},
    {Strategy::zero3, kCut, kCut, true, true, Accumulate::reduce_scatter, Reshard::except_last},
}};

// Placement of a parameter's values, and of its gradient, on an axis that cuts these dimensions.
Placement values_on(const DimensionSet& cut, const Parameter& parameter) {
    for (size_t d = 0; d < parameter.dimensions.size(); ++d)
        if (cut.contains(parameter.dimensions[d])) return Placement::shard(static_cast<int>(d));
    return kFull;
}
Placement gradient_on(const DimensionSet& cut, const Parameter& parameter) {
    const Placement values = values_on(cut, parameter);
    return values == kFull && parameter.summed.intersects(cut) ? Placement::partial() : values;
}

void check_accumulate(const StrategySpec& row, Accumulate accumulate) {
    if (accumulate == Accumulate::reduce_scatter && !row.allows_reduce_scatter) {
        throw_usage(
            "parallel.accumulate is reduce_scatter, but {} keeps gradients full until the last microbatch; "
            "use local, or strategy zero2 or zero3",
            word_of(row.strategy));
    }
    if (accumulate == Accumulate::local && !row.allows_local) {
        throw_usage(
            "parallel.accumulate is local, but {} keeps no full gradients between microbatches; use "
            "reduce_scatter, or strategy zero1",
            word_of(row.strategy));
    }
}

}  // namespace

std::string Placement::describe() const {
    if (kind == Kind::shard) return fmt::format("Shard({})", dim);
    return kind == Kind::partial ? "Partial" : "Replicate";
}

std::optional<Collective> collective_between(Placement from, Placement to) {
    using Kind = Placement::Kind;
    if (from == to) return std::nullopt;
    if (to.kind == Kind::partial)
        throw_usage("placement: {} cannot become Partial, the sum would count it once per rank",
                    from.describe());
    if (from.kind == Kind::partial)
        return to.kind == Kind::shard ? Collective::reduce_scatter : Collective::all_reduce;
    if (from.kind == Kind::replicate) return std::nullopt;
    return to.kind == Kind::replicate ? Collective::all_gather : Collective::all_to_all;
}

const StrategySpec& row_of(Strategy strategy) {
    return kRows[static_cast<size_t>(strategy)];
}

Sharing resolve_sharing(Sharing sharing) {
    const StrategySpec& row = row_of(sharing.strategy);
    if (!sharing.accumulate) sharing.accumulate = row.default_accumulate;
    if (!sharing.reshard_after_forward) sharing.reshard_after_forward = row.default_reshard;
    check_accumulate(row, *sharing.accumulate);
    if (*sharing.reshard_after_forward != Reshard::no && row.stored == kFull) {
        throw_usage(
            "parallel.reshard_after_forward is set, but {} stores parameters full: there is nothing to free "
            "and gather again; use false, or strategy zero3",
            word_of(row.strategy));
    }
    if (sharing.optimizer_step == OptimizerStep::in_backward && sharing.launch == Launch::after_backward) {
        throw_usage(
            "parallel.optimizer_step is in_backward, but parallel.launch is after_backward: no gradient is "
            "reduced while backward runs; set launch to ready");
    }
    if (sharing.optimizer_step == OptimizerStep::in_backward && sharing.step_order == StepOrder::forward) {
        throw_usage(
            "parallel.optimizer_step is in_backward, but parallel.step_order is forward: backward completes "
            "gradients in reverse order; set step_order to reverse");
    }
    if (sharing.reduce_dtype != DType::f32 && sharing.reduce_dtype != DType::bf16)
        throw_usage("parallel: gradients are reduced in f32 or bf16, not {}", name_of(sharing.reduce_dtype));
    if (sharing.bucket_bytes < 0)
        throw_usage("parallel.bucket_bytes is {}: want a size, or 0 for one that fits the ranks",
                    sharing.bucket_bytes);
    return sharing;
}

DimensionSet dimensions_cut_by(Axis axis) {
    using enum Dimension;
    if (axis != tensor) return {tokens, own_tokens};
    return {heads, head_width, hidden, vocabulary, columns, own_tokens};
}

ParameterPlacement place_parameter(const Sharing& sharing, const Parameter& parameter) {
    const StrategySpec& row = row_of(sharing.strategy);
    const bool keeps_shard = sharing.accumulate.value() == Accumulate::reduce_scatter;
    ParameterPlacement place;
    for (const Axis axis : kAxes) {
        const auto i = static_cast<size_t>(axis);
        const DimensionSet cut = dimensions_cut_by(axis);
        const bool by_strategy = axis == shard || axis == context;  // context is folded into shard
        place.computed[i] = values_on(cut, parameter);
        place.gradient[i] = gradient_on(cut, parameter);
        place.stored[i] = by_strategy ? row.stored : place.computed[i];
        place.state[i] = by_strategy ? row.state : place.computed[i];
        place.accumulated[i] = by_strategy && keeps_shard ? row.state : place.gradient[i];
    }
    return place;
}

}  // namespace speedrun
