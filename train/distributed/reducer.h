// Reducer: the collectives of the optimizer's regions, as the strategy's placements ask for them.
//   ddp     raw Partial -> Replicate: all_reduce over all ranks; nothing to gather
//   zero1   raw Partial -> Shard: reduce_scatter over `shard`, all_reduce of the part over `replicate`; after
//   the step
//           Shard -> Replicate: all_gather of the compute copy over `shard`
// Separate communicators for reducing and gathering, each on one stream. All sums; the scale is the loss's.
#pragma once

#include <memory>

#include "train/distributed/ranks.h"
#include "train/distributed/schedule.h"
#include "train/model/gradient_store.h"
#include "train/model/parameter_store.h"

namespace speedrun {

// How the ranks share memory under a plan: parts = ranks that shard the optimizer.
RegionRules region_rules(const Ranks& ranks);

// The collectives of an optimizer step in the order in which they are enqueued: one row per region, as
// backward completes them, and one for the statistics. What a Reducer of these ranks sends, `plan` prints.
std::vector<ScheduleRow> region_schedule(const RegionLayout& layout, const Ranks& ranks);

class Reducer {
  public:
    // Connects to the other ranks: all ranks make theirs at the same time. Alone, nothing is ever enqueued.
    Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients);

    bool alone() const { return ranks_.size() == 1; }
    // Do ranks hold different parts of the optimizer's state?
    bool sharded() const { return parameters_.layout().parts() > 1; }

    // The region's raw gradient becomes the sum over all ranks: all of it, or this rank's part.
    void reduce(const Region& region, Stream& stream);
    // values (f32) summed over all ranks; reduced over the ranks that hold the parts of the state.
    void sum_over_all(const Tensor& values, Stream& stream);
    void reduce_over_parts(const Tensor& values, Reduction reduction, Stream& stream);
    // The compute copy of the region, from all parts.
    void gather(const Region& region, Stream& stream);
    // whole (f32, padded) <- the masters of the region, from all parts; on the stream of gather.
    void gather_master(const Region& region, const Tensor& whole, Stream& stream);

    // Bytes that this rank has sent so far.
    int64_t bytes_sent() const;

  private:
    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    std::unique_ptr<Communicator> all_, parts_, copies_, gather_;  // copies_: across `replicate`
};

}  // namespace speedrun
