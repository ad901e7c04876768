// Placement of a parameter's values, and the table of strategies. A value is placed on each mesh axis:
//     Replicate    every rank of the axis has the whole value;
//     Shard(dim)   every rank has its shard of dimension dim (EvenSplit, padded with zeros);
//     Partial      every rank has a term; the value is the sum over the axis.
// Collectives follow only from changes of placement (collective_between). Rule for gradients: if an axis cuts a
// dimension of the parameter, the gradient is Shard. If it cuts a dimension over which the gradient sums
// (Parameter::summed), the gradient is Partial. Otherwise it is Replicate, and summing it would multiply it by the size
// of the axis.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/device/dtype.h"
#include "train/comm/collective.h"
#include "train/comm/mesh.h"
#include "train/config/config.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

struct Placement {
    enum class Kind : uint8_t { replicate, shard, partial } kind = Kind::replicate;
    int dim = 0;  // only with shard

    static constexpr Placement replicate() { return {Kind::replicate, 0}; }
    static constexpr Placement shard(int dim) { return {Kind::shard, dim}; }
    static constexpr Placement partial() { return {Kind::partial, 0}; }
    constexpr bool operator==(const Placement&) const = default;
    std::string describe() const;  // "Replicate", "Shard(0)", "Partial"
};

// Returns the collective that changes an axis from one placement to another. nullopt without a change and for Replicate
// -> Shard, a local slice. Partial -> Shard: reduce_scatter. Partial -> Replicate: all_reduce. Shard -> Replicate:
// all_gather. Shard(i) -> Shard(j): all_to_all. Throws a usage error for any other change to Partial, which would count
// terms twice.
std::optional<Collective> collective_between(Placement from, Placement to);

using AxisPlacements = std::array<Placement, kNumAxes>;  // index: Axis

// Placements of a parameter during one optimizer step.
struct ParameterPlacement {
    AxisPlacements stored;       // kept between steps
    AxisPlacements computed;     // read by forward and backward
    AxisPlacements gradient;     // written by backward in each microbatch
    AxisPlacements accumulated;  // kept between microbatches
    AxisPlacements state;        // optimizer state and the optimizer's input gradient
    bool operator==(const ParameterPlacement&) const = default;
};

// Row of the table: placements on the axes that shard the optimizer (shard, context). Values are replicated along
// `replicate`.
struct StrategySpec {
    Strategy strategy;
    Placement stored;
    Placement state;
    bool allows_local;           // accumulate the full gradient locally
    bool allows_reduce_scatter;  // reduce each microbatch's gradient, accumulate the shard
    Accumulate default_accumulate;
    Reshard default_reshard;
};
const StrategySpec& row_of(Strategy strategy);

// Sets all open options. Throws a usage error with the reason for each invalid combination.
Sharing resolve_sharing(Sharing sharing);

// Returns the dimensions that an axis cuts, of values and parameters. Batch axes and context cut tokens; tensor cuts
// heads, the MLP's hidden units and rows of tables. With sequence parallelism, tensor also cuts the tokens of values
// without such dimensions.
DimensionSet dimensions_cut_by(Axis axis);

// Returns the placements of one parameter under a resolved sharing.
ParameterPlacement place_parameter(const Sharing& sharing, const Parameter& parameter);

}  // namespace speedrun
