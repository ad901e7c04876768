#include "train/distributed/reducer.h"

#include "kernels/device/device.h"

namespace speedrun {

RegionRules region_rules(const Ranks& ranks) {
    RegionRules rules;
    if (ranks.plan.strategy == Strategy::ddp) return rules;
    rules.parts = ranks.mesh.size(Axis::shard);
    rules.index = ranks.mesh.coordinates(ranks.rank())[static_cast<size_t>(Axis::shard)];
    return rules;
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
        const ParameterPlacement placement = place_parameter(ranks.plan, -1);
        const DType dtype = region.full_precision ? DType::f32 : ranks.plan.compute_dtype;
        const int64_t elements = layout.padded(region), padding = elements - region.count;
        rows.push_back({.name = region.name(), .parameters = {}, .collectives = {}});
        for (const Piece& piece : region.pieces) rows.back().parameters.push_back(piece.parameter->id);
        add(placement.gradient, placement.state, elements, padding, DType::f32, When::last_microbatch);
        add(placement.state, placement.computed, elements, padding, dtype, When::after_step);
    }
    AxisPlacements partial{}, parts{};
    partial[static_cast<size_t>(Axis::replicate)] = Placement::partial();
    partial[static_cast<size_t>(Axis::shard)] = Placement::partial();
    parts[static_cast<size_t>(Axis::shard)] = Placement::partial();
    rows.push_back({.name = "loss, stop, norms", .parameters = {}, .collectives = {}});
    add(partial, {}, 2, 0, DType::f32, When::last_microbatch);
    if (layout.parts() > 1) add(parts, {}, layout.size(), 0, DType::f32, When::last_microbatch);
    return rows;
}

Reducer::Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients)
    : ranks_(ranks), parameters_(parameters), gradients_(gradients) {
    if (!ranks.world || alone()) return;
    const auto connect = [&](const char* name, AxisSet axes) {
        return ranks.world->connect(name, ranks.mesh.group(ranks.rank(), axes));
    };
    all_ = connect("reduce over all", {Axis::replicate, Axis::shard});
    if (!sharded()) return;
    parts_ = connect("reduce over shard", {Axis::shard});
    gather_ = connect("gather over shard", {Axis::shard});
    if (ranks.mesh.size(Axis::replicate) > 1) copies_ = connect("reduce over replicate", {Axis::replicate});
}

void Reducer::reduce(const Region& region, Stream& stream) {
    if (!all_) return;
    if (!sharded()) return all_->all_reduce(gradients_.whole(region), stream);
    parts_->reduce_scatter(gradients_.padded_part(region), gradients_.whole(region), stream);
    if (copies_) copies_->all_reduce(gradients_.padded_part(region), stream);
}

void Reducer::sum_over_all(const Tensor& values, Stream& stream) {
    if (all_) all_->all_reduce(values, stream);
}

void Reducer::reduce_over_parts(const Tensor& values, Reduction reduction, Stream& stream) {
    if (parts_) parts_->all_reduce(values, stream, reduction);
}

void Reducer::gather(const Region& region, Stream& stream) {
    if (!gather_) return;
    gather_->all_gather(parameters_.compute_whole(region), parameters_.compute_padded_part(region), stream);
}

void Reducer::gather_master(const Region& region, const Tensor& whole, Stream& stream) {
    if (!gather_) throw_internal("{}: its master is not shared among ranks", region.name());
    gather_->all_gather(whole, parameters_.master_padded_part(region), stream);
}

int64_t Reducer::bytes_sent() const {
    int64_t sum = 0;
    for (const auto* communicator : {&all_, &parts_, &copies_, &gather_}) {
        if (!*communicator) continue;
        for (const CollectiveCount& count : (*communicator)->counts()) sum += count.bytes_sent;
    }
    return sum;
}

}  // namespace speedrun
