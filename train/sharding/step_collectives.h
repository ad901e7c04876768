// Collectives of one optimizer step, derived from placements. `plan` prints this list, the Reducer runs it, and traces
// refer to it.
#pragma once

#include <string>
#include <vector>

#include "train/sharding/bucket_layout.h"
#include "train/sharding/placement.h"
#include "train/sharding/ranks.h"

namespace speedrun {

enum class When : uint8_t {
    before_forward,
    before_backward,
    every_microbatch,
    last_microbatch,
    in_step,
    after_step,
    at_start  // before the first step
};
const char* name_of(When when);
inline int times_per_step(When when, int num_microbatches) {
    return when == When::at_start ? 0 : when <= When::every_microbatch ? num_microbatches : 1;
}

struct StepCollective {
    Collective kind;
    AxisSet axes;  // axes of the group
    int group_size;
    DType dtype;
    int64_t payload_bytes;  // whole tensor over the group, with padding
    int64_t padding_bytes;  // zeros in payload_bytes where the tensor is cut; 0 for sums of shards
    double sent_bytes;      // sent by a rank, mean over the group
    When when;
    // An all_to_all of a table's gradient sends only the rows that a rank's tokens touch; bytes are then an upper bound.
    bool rows = false;

    std::string describe() const;  // "reduce_scatter over shard (8 ranks), f32, 1.50 MiB, last microbatch"
};

struct PaddedValues {
    int64_t elements = 0, padding = 0;  // padding: zeros at the end, included in elements
};

// Returns the collectives of one change of placement of these values, in order: all_reduce over tensor, then
// reduce_scatter (to shrink later operands), all_reduce, all_gather. Axes with the same change form one group; axes of
// size 1 need none. `elements` must be a multiple of the ranks that cut. Throws for changes that no bucket has: from
// one dimension to another, or any on tensor except a sum.
std::vector<StepCollective> collectives_between(const AxisPlacements& from, const AxisPlacements& to,
                                                PaddedValues values, const Mesh& mesh, DType dtype,
                                                When when);

// Collectives of a bucket, or of a step's statistics.
struct BucketCollectives {
    std::string name;
    int bucket = -1;  // -1: statistics
    std::vector<StepCollective> collectives;

    std::string describe() const;
};

// Returns a row per bucket, in the order in which backward completes them, and one for the statistics. compute: dtype
// of gathered parameters (except full-precision ones) and exchanged matrices.
std::vector<BucketCollectives> step_collectives(const BucketLayout& layout, const Ranks& ranks,
                                                DType compute);

// Most tokens of a rank per microbatch and per step; 0: unknown.
struct RankTokens {
    int64_t microbatch = 0, step = 0;
};

// Returns the bucket rules of these groups on these ranks. An optimizer of whole matrices cannot have tables
// with exchanged rows, or tables padded by the tensor axis (rows not a multiple of the ranks): usage errors.
BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config,
                         const RankTokens& tokens = {});

// Returns the elements of a full bucket for a model of `elements`; 0 for one rank (one parameter per bucket).
int64_t bucket_target(const Sharing& sharing, int num_ranks, int64_t elements);
// Returns the most ranks, a divisor of num_ranks, for which such buckets are not dominated by latency.
int ranks_that_fit(const Sharing& sharing, int num_ranks, int64_t elements);

// Number of ranks with equal state of a bucket, and this rank's index among them.
struct Copies {
    int count, index;
};
Copies copies_of(const Bucket& bucket, const Ranks& ranks);

// Axes over which the loss is summed, and the terms of the norm. norm_axes() cut the state of some bucket, so that
// ranks along them have different terms; empty if all ranks have all terms.
AxisSet loss_axes();
AxisSet norm_axes(const BucketLayout& layout, const Ranks& ranks);
// True on exactly one of the ranks that hold the same shard, so that the norm counts it once.
bool adds_norm_term(const Bucket& bucket, AxisSet norm_axes, const Ranks& ranks);

// Returns the bytes that a rank sends per optimizer step, mean over ranks; index: kind of collective.
std::array<double, kNumCollectives> step_wire_bytes(const std::vector<BucketCollectives>& rows,
                                                    int num_microbatches);

}  // namespace speedrun
