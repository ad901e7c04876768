#include "train/distributed/reducer.h"

#include <algorithm>
#include <numeric>

#include "kernels/device/device.h"

namespace speedrun {

namespace {

constexpr AxisSet kRankAxes{Axis::replicate, Axis::shard};

// The axes along which the optimizer state of a region is cut.
AxisSet state_axes(const Region& region, const Ranks& ranks) {
    if (region.parts == 1) return {};
    if (ranks.plan.strategy == Strategy::ddp) return kRankAxes;  // banks of matrices
    return {Axis::shard};
}

AxisPlacements on(const AxisSet& axes, Placement placement) {
    AxisPlacements placements{};
    for (const Axis axis : kAxes)
        if (axes.contains(axis)) placements[static_cast<size_t>(axis)] = placement;
    return placements;
}

// As place_parameter() says of the strategy, but for the banks of ddp, whose owners hold parts.
ParameterPlacement place(const Region& region, const Ranks& ranks) {
    ParameterPlacement placement = place_parameter(ranks.plan, -1);
    if (ranks.plan.strategy == Strategy::ddp)
        placement.state = on(state_axes(region, ranks), Placement::shard(0));
    return placement;
}

When gathered_when(const Ranks& ranks) {
    return *ranks.plan.reshard_after_forward == Reshard::no ? When::after_step : When::before_forward;
}

}  // namespace

RegionRules region_rules(const Ranks& ranks) {
    const ParallelPlan plan = resolve_plan(ranks.plan);
    RegionRules rules;
    const auto group_of = [&](AxisSet axes) { return ranks.mesh.group(ranks.rank(), axes); };
    const Group all = group_of(kRankAxes), shard = group_of({Axis::shard});
    rules.coalesce_below = plan.coalesce_below_bytes / size_of(DType::f32);
    if (plan.strategy == Strategy::ddp) {
        rules.matrix_parts = all.size();
        rules.matrix_index = all.index;
        return rules;
    }
    rules.parts = shard.size();
    rules.index = shard.index;
    if (plan.strategy == Strategy::zero3 && rules.parts > 1) {
        rules.cut_matrices = true;
        rules.stored_in_parts = plan.reshard_after_forward.value();
    }
    return rules;
}

GradientMemory gradient_memory(const Ranks& ranks, int64_t microbatches, bool every_step) {
    const ParallelPlan plan = resolve_plan(ranks.plan);
    const bool in_backward = plan.optimizer_step == OptimizerStep::in_backward;
    const bool used_up_at_once = in_backward && microbatches == 1 && every_step;
    GradientMemory memory;
    memory.accumulators = plan.accumulate.value() == Accumulate::reduce_scatter &&
                          ranks.mesh.size(Axis::shard) > 1 && !used_up_at_once;
    memory.ring = plan.launch == Launch::ready && (memory.accumulators || used_up_at_once);
    return memory;
}

std::vector<ScheduleRow> region_schedule(const RegionLayout& layout, const Ranks& ranks) {
    std::vector<ScheduleRow> rows;
    const auto add = [&](const AxisPlacements& from, const AxisPlacements& to, int64_t elements,
                         int64_t padding, DType dtype, When when) {
        for (PlannedCollective collective :
             collectives_between(from, to, {elements}, ranks.mesh, dtype, when)) {
            if (collective.payload_bytes == elements * size_of(dtype))  // of the whole region, not of a shard
                collective.padding_bytes = padding * size_of(dtype);
            rows.back().collectives.push_back(collective);
        }
    };
    for (const int id : layout.backward_order()) {
        const Region& region = layout[id];
        const ParameterPlacement placement = place(region, ranks);
        const DType dtype = region.full_precision ? DType::f32 : ranks.plan.compute_dtype;
        const DType reduce = ranks.plan.reduce_dtype;
        const int64_t elements = layout.padded(region), padding = elements - region.count;
        rows.push_back({.name = region.name(), .parameters = {}, .collectives = {}});
        for (const Piece& piece : region.pieces) rows.back().parameters.push_back(piece.parameter->id);
        if (layout.rules().stored_in_parts) {
            const auto reads = reads_of(region, Stages(layout.num_units()), *layout.rules().stored_in_parts);
            add(placement.stored, placement.computed, elements, padding, dtype, gathered_when(ranks));
            if (reads.size() > 1)
                add(placement.stored, placement.computed, elements, padding, dtype, When::before_backward);
        }
        add(placement.gradient, placement.accumulated, elements, padding, reduce, When::every_microbatch);
        add(placement.accumulated, placement.state, elements, padding, reduce, When::last_microbatch);
        if (!layout.rules().stored_in_parts)
            add(placement.state, placement.computed, elements, padding, dtype, When::after_step);
    }
    for (const MatrixFamily& family : layout.matrix_families()) {  // to the owners, and back
        const int parts = layout.rules().parts;
        const int64_t banks = family.banks(parts),
                      bytes = parts * family.block * size_of(ranks.plan.compute_dtype);
        rows.push_back(
            {.name = fmt::format("{} banks of {} matrices {}x{}", banks, parts, family.rows, family.cols),
             .parameters = {},
             .collectives = {}});
        for (int64_t i = 0; i < 2 * banks; ++i)
            rows.back().collectives.push_back({Collective::all_to_all,
                                               {Axis::shard},
                                               parts,
                                               ranks.plan.compute_dtype,
                                               bytes,
                                               0,
                                               When::in_step});
    }
    rows.push_back({.name = "loss, stop, norms", .parameters = {}, .collectives = {}});
    add(on(kRankAxes, Placement::partial()), {}, 2, 0, DType::f32, When::last_microbatch);
    if (layout.sharded()) {
        const bool all = ranks.plan.strategy == Strategy::ddp;
        add(on(all ? kRankAxes : AxisSet{Axis::shard}, Placement::partial()), {}, layout.size(), 0,
            DType::f32, When::last_microbatch);
    }
    return rows;
}

Reducer::Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : ranks_(ranks), parameters_(parameters), gradients_(gradients), ops_(runtime.ops()) {
    if (ranks.plan.reduce_dtype != DType::f32 && !alone()) {
        int64_t largest = 0;
        for (const Region& region : parameters.layout().all())
            largest = std::max(largest, parameters.layout().padded(region));
        wire_ = Buffer(runtime.device(), "gradients to reduce", MemoryCategory::workspace,
                       largest * size_of(ranks.plan.reduce_dtype));
    }
    if (!ranks.world || alone()) return;
    const auto connect = [&](const char* name, AxisSet axes) {
        return ranks.world->connect(name, ranks.mesh.group(ranks.rank(), axes));
    };
    all_ = connect("reduce over all", kRankAxes);
    if (!sharded()) return;
    if (ranks.plan.strategy == Strategy::ddp) {
        parts_ = connect("reduce to owners", kRankAxes);
        gather_ = connect("gather from owners", kRankAxes);
        return;
    }
    parts_ = connect("reduce over shard", {Axis::shard});
    gather_ = connect("gather over shard", {Axis::shard});
    if (parameters.layout().rules().cut_matrices) exchange_ = connect("exchange over shard", {Axis::shard});
    if (ranks.mesh.size(Axis::replicate) > 1) copies_ = connect("reduce over replicate", {Axis::replicate});
}

void Reducer::sum(Communicator& group, const Tensor& values, Stream& stream) {
    if (!wire_.data()) return group.all_reduce(values, stream);
    const Tensor wire = wire_.tensor(ranks_.plan.reduce_dtype, {values.numel()});
    ops_.cast(wire, values, stream);
    group.all_reduce(wire, stream);
    ops_.cast(values, wire, stream);
}

void Reducer::scatter_sum(const Tensor& part, const Tensor& whole, Stream& stream) {
    if (!wire_.data()) return parts_->reduce_scatter(part, whole, stream);
    const Tensor wire = wire_.tensor(ranks_.plan.reduce_dtype, {whole.numel()});
    const Tensor own = wire.reshaped({parts_->size(), part.numel()}).row_slice(parts_->index(), 1);
    ops_.cast(wire, whole, stream);
    parts_->reduce_scatter(own.reshaped({part.numel()}), wire, stream);
    ops_.cast(part, own.reshaped({part.numel()}), stream);
}

void Reducer::reduce(const Region& region, bool first, bool last, Stream& stream) {
    if (!all_) return;
    const Tensor whole = gradients_.whole(region);
    if (region.parts == 1) return sum(*all_, whole, stream);
    const Tensor part = gradients_.accumulated_part(region);
    if (!gradients_.memory().accumulators || first) {
        scatter_sum(part, whole, stream);
    } else {
        const Tensor raw = gradients_.padded_part(region);
        scatter_sum(raw, whole, stream);
        const int64_t rows = std::gcd(part.numel(), int64_t{64});  // for as many threads
        const auto matrix = [&](const Tensor& t) { return t.reshaped({rows, t.numel() / rows}); };
        ops_.add(matrix(part), matrix(part), matrix(raw), stream);
    }
    if (last && copies_) sum(*copies_, part, stream);
}

void Reducer::sum_over_all(const Tensor& values, Stream& stream) {
    if (all_) all_->all_reduce(values, stream);
}

void Reducer::reduce_over_parts(const Tensor& values, Reduction reduction, Stream& stream) {
    if (parts_) parts_->all_reduce(values, stream, reduction);
}

void Reducer::gather(const Region& region, Stream& stream) {
    if (!gather_ || region.parts == 1) return;
    gather_->all_gather(parameters_.compute_whole(region), parameters_.compute_padded_part(region), stream);
}

void Reducer::gather_master(const Region& region, const Tensor& whole, Stream& stream) {
    if (!gather_ || region.parts == 1)
        throw_internal("{}: its master is not shared among ranks", region.name());
    gather_->all_gather(whole, parameters_.master_padded_part(region), stream);
}

void Reducer::exchange(const Tensor& output, const Tensor& input, Stream& stream) {
    if (exchange_) exchange_->all_to_all(output, input, stream);
}

int64_t Reducer::bytes_sent() const {
    int64_t sum = 0;
    for (const CollectiveCount& count : counts()) sum += count.bytes_sent;
    return sum;
}

CollectiveCounts Reducer::counts() const {
    CollectiveCounts sum{};
    for (const auto* communicator : {&all_, &parts_, &copies_, &gather_, &exchange_})
        if (*communicator) sum = sum + (*communicator)->counts();
    return sum;
}

void Reducer::count(Counts& into, Runtime& runtime) const {
    const auto count = [](Count& to, std::vector<const Communicator*> all, Stream& stream) {
        if (!all.front()) return;
        Communicator::count_at(to.counts, std::move(all), stream);
        stream.record(*to.done);
    };
    count(into.reduce, {all_.get(), parts_.get(), copies_.get()}, runtime.reduce());
    count(into.gather, {gather_.get()}, runtime.gather());
    count(into.exchange, {exchange_.get()}, runtime.optimizer());
}

}  // namespace speedrun
