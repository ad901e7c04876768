// The collectives of one optimizer step, derived from placements: one list, which `plan` prints, the Reducer
// carries out and traces quote.
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
    after_step
};
const char* name_of(When when);
int times_per_step(When when, int num_microbatches);

struct StepCollective {
    Collective kind;
    AxisSet axes;  // of the group
    int group_size;
    DType dtype;
    int64_t payload_bytes;  // of the whole tensor over the group, padding included
    int64_t padding_bytes;  // of these, zeros where the tensor is cut; 0 for sums of shards
    double sent_bytes;      // by a rank, mean over the group
    When when;
    // An all_to_all of a table's gradient sends only the rows that a rank's tokens touch; bytes are then an upper bound.
    bool rows = false;

    std::string describe() const;  // "reduce_scatter over shard (8 ranks), f32, 1.50 MiB, last microbatch"
};

struct PaddedValues {
    int64_t elements = 0, padding = 0;  // of the elements, so many at the end are zeros
};

// The collectives of one change of placement of these values, in the order in which they run: first all_reduce
// over tensor alone, then reduce_scatter (so that what follows is small), all_reduce, all_gather. Axes with the same change form one group; axes of size 1 need none. Cuts
// are even: `elements` is a multiple of the ranks that cut. Throws for a change that no bucket makes: from
// one dimension to another, or on tensor anything but a sum.
std::vector<StepCollective> collectives_between(const AxisPlacements& from, const AxisPlacements& to,
                                                PaddedValues values, const Mesh& mesh, DType dtype,
                                                When when);

// What a bucket, or the statistics of a step, make the ranks send.
struct CollectiveRow {
    std::string name;
    int bucket = -1;  // -1: the statistics
    std::vector<StepCollective> collectives;

    std::string describe() const;
};

// A row for each bucket, as backward completes them, and one for the statistics. compute: the type that the
// device computes in, in which parameters are gathered (but for full-precision ones) and matrices exchanged.
std::vector<CollectiveRow> step_collectives(const BucketLayout& layout, const Ranks& ranks, DType compute);

// Tokens of a rank, of the largest microbatch and of the largest step; 0: not known, it may be any number.
struct RankTokens {
    int64_t microbatch = 0, step = 0;
};

// How the parameters of these groups lie in memory when these ranks share it. Usage errors, in a group whose optimizer needs whole
// matrices, for a table that the tensor axis pads (its rows are no multiple of the ranks): padding is none of them; and for one
// whose gradient travels as rows.
BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config,
                         const RankTokens& tokens = {});

// Elements of a full bucket of a model with so many: 0 (each parameter is one) for one rank.
int64_t bucket_target(const Sharing& sharing, int num_ranks, int64_t elements);
// The most ranks, a divisor of num_ranks, for which such buckets are not mostly latency.
int ranks_that_fit(const Sharing& sharing, int num_ranks, int64_t elements);

// Ranks whose state of a bucket is the same: how many, and which of them this one is.
struct Copies {
    int count, index;
};
Copies copies_of(const Bucket& bucket, const Ranks& ranks);

// The statistics of a step: axes over which the loss is summed, and those over which the terms of the norm are: they
// cut the state of some bucket, so that ranks along them have other terms; none where ranks have all of them.
AxisSet loss_axes();
AxisSet norm_axes(const BucketLayout& layout, const Ranks& ranks);
// Does this rank add its term of the bucket to the norm over these axes? One does of those along them that have the same.
bool adds_norm_term(const Bucket& bucket, AxisSet norm_axes, const Ranks& ranks);

// Bytes that a rank sends per optimizer step of this many microbatches, mean over the ranks, by kind of
// collective.
std::array<double, kNumCollectives> step_wire_bytes(const std::vector<CollectiveRow>& rows,
                                                    int num_microbatches);

}  // namespace speedrun
