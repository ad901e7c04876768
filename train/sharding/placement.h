// Where the numbers of a parameter live, and the one table of strategies. A value is placed on each mesh
// axis:
//     Replicate    every rank of the axis has all of it,
//     Shard(dim)   every rank has its shard of dimension dim (EvenSplit, padded with zeros),
//     Partial      every rank has a term; the value is the sum over the axis.
// Collectives follow from changes of placement and from nothing else (collective_between). The rule for
// gradients: an axis that cuts a dimension of the parameter leaves every rank its shard of the gradient; one that
// cuts a dimension over which the gradient sums (Parameter::summed) makes it Partial; otherwise it is Replicate,
// and summing it would multiply it by the size of the axis.
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
    int dim = 0;  // of shard

    static constexpr Placement replicate() { return {Kind::replicate, 0}; }
    static constexpr Placement shard(int dim) { return {Kind::shard, dim}; }
    static constexpr Placement partial() { return {Kind::partial, 0}; }
    constexpr bool operator==(const Placement&) const = default;
    std::string describe() const;  // "Replicate", "Shard(0)", "Partial"
};

// The collective that takes one axis from a placement to another; none for no change and for Replicate ->
// Shard, which is a local slice. Partial -> Shard: reduce_scatter. Partial -> Replicate: all_reduce. Shard ->
// Replicate: all_gather. Shard(i) -> Shard(j): all_to_all. Usage error: anything else -> Partial, which would
// count terms twice.
std::optional<Collective> collective_between(Placement from, Placement to);

using AxisPlacements = std::array<Placement, kNumAxes>;  // by Axis

// The life of a parameter in one optimizer step.
struct ParameterPlacement {
    AxisPlacements stored;       // between steps
    AxisPlacements computed;     // what forward and backward read
    AxisPlacements gradient;     // raw, as backward leaves it after each microbatch
    AxisPlacements accumulated;  // what is kept from one microbatch to the next
    AxisPlacements state;        // optimizer state, and the gradient that the optimizer reads
    bool operator==(const ParameterPlacement&) const = default;
};

// How ranks share a step, with what another section adds to it: who holds what, and when it travels. What the config leaves open (nullopt) is
// what the strategy's row says.
struct Sharing : SharingConfig {
    bool global_clip = false;        // does optimizers.clip scale by the norm of all gradients?
    bool sequence_parallel = false;  // does the tensor axis shard the sequence outside of matrices?
};

// A row of the table: placements on the axes that shard the optimizer (shard, context); copies along
// replicate.
struct StrategyRow {
    Strategy strategy;
    Placement stored;
    Placement state;
    bool allows_local;           // accumulate the full gradient locally
    bool allows_reduce_scatter;  // reduce each microbatch's gradient, accumulate the shard
    Accumulate default_accumulate;
    Reshard default_reshard;
};
const StrategyRow& row_of(Strategy strategy);

// Nothing left open. Usage errors that say why, for every combination that cannot be right.
Sharing resolve_sharing(Sharing sharing);

// What an axis cuts, of values and of parameters: the batch axes and context the tokens; tensor heads, the MLP's hidden
// units and the rows of tables, and, under sequence parallelism, the tokens of values that have none of these.
DimensionSet dimensions_cut_by(Axis axis);

// Placements of one parameter under what resolve_sharing returns.
ParameterPlacement place_parameter(const Sharing& sharing, const Parameter& parameter);

}  // namespace speedrun
