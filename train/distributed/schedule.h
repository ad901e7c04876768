// The collectives of one optimizer step, derived from placements: what `plan` prints and gradient sync
// carries out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/distributed/placement.h"
#include "train/model/parameter_table.h"

namespace speedrun {

enum class When : uint8_t {
    before_forward,
    before_backward,
    every_microbatch,
    last_microbatch,
    in_step,
    after_step
};
const char* name_of(When when);

struct PlannedCollective {
    Collective kind;
    AxisSet axes;  // of the group
    int group_size;
    DType dtype;
    int64_t payload_bytes;  // of the whole tensor over the group, padding included
    int64_t padding_bytes;  // of these, zeros where the tensor is cut; 0 for sums of shards
    When when;

    double wire_bytes() const { return speedrun::wire_bytes(kind, group_size, payload_bytes); }
    std::string describe() const;  // "reduce_scatter over shard (8 ranks), f32, 1.50 MiB, last microbatch"
};

// The collectives of one change of placement of a tensor of this shape, in the order in which they run: first
// all_reduce over tensor alone, then reduce_scatter (so that what follows is small), all_reduce, all_gather.
// Axes with the same change form one group; axes of size 1 need none. Dimension 0 is cut with padding
// (EvenSplit). Throws for a change that no parameter makes: from one dimension to another, or on tensor
// anything but a sum.
std::vector<PlannedCollective> collectives_between(const AxisPlacements& from, const AxisPlacements& to,
                                                   const std::vector<int64_t>& shape, const Mesh& mesh,
                                                   DType dtype, When when);

// All collectives of one parameter in one optimizer step. Gradients travel in reduce_dtype; parameters in
// compute_dtype, or f32 if they are computed with in full precision. `last_unit`: of the model, for
// "except_last".
std::vector<PlannedCollective> parameter_collectives(const Parameter& parameter, const ParallelPlan& plan,
                                                     const Mesh& mesh, int last_unit);

// One line of the schedule: a parameter, or the small ones of a unit that share one flat buffer.
struct ScheduleRow {
    std::string name;             // of the parameter; "unit 3: 5 small parameters"
    std::vector<int> parameters;  // ids, ascending
    std::vector<PlannedCollective> collectives;

    std::string describe() const;
};

// The rows in the order of their first parameter's declaration. Small parameters share a row only within a
// unit and where `kind` (say, the optimizer group) is the same: they travel together, so they must be due
// together.
std::vector<ScheduleRow> build_schedule(const std::vector<Parameter>& parameters, const ParallelPlan& plan,
                                        const Mesh& mesh,
                                        const std::function<int(const Parameter&)>& kind = {});

// Bytes that a rank sends per optimizer step of this many microbatches, mean over the ranks, by kind of
// collective.
std::array<double, kNumCollectives> step_wire_bytes(const std::vector<ScheduleRow>& rows,
                                                    int num_microbatches);

}  // namespace speedrun
