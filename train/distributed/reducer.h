// Reducer: the collectives of the optimizer's regions, as the strategy's placements ask for them.
//   cut regions     raw Partial -> Shard: reduce_scatter over the ranks that share the state, all_reduce of
//                   the part over `replicate`; Shard -> Replicate: all_gather of the compute copy
//   others (ddp)    raw Partial -> Replicate: all_reduce over all ranks; nothing to gather
// With accumulators (accumulate: reduce_scatter) the reduce_scatter comes with every microbatch and is added
// to this rank's part; the all_reduce over the copies comes once, over that sum.
// Separate communicators for reducing and gathering, each on one stream. All sums; the scale is the loss's.
#pragma once

#include <memory>

#include "train/distributed/ranks.h"
#include "train/distributed/schedule.h"
#include "train/model/gradient_store.h"
#include "train/model/parameter_store.h"

namespace speedrun {

// How the ranks share memory under a plan.
RegionRules region_rules(const Ranks& ranks);
// What is kept of gradients under a plan, with so many microbatches per step. every_step: does each optimizer
// group step every step?
GradientMemory gradient_memory(const Ranks& ranks, int64_t microbatches, bool every_step);

// The collectives of an optimizer step in the order in which they are enqueued: one row per region, as
// backward completes them, and one for the statistics. What a Reducer of these ranks sends, `plan` prints.
std::vector<ScheduleRow> region_schedule(const RegionLayout& layout, const Ranks& ranks);

class Reducer {
  public:
    // Connects to the other ranks: all ranks make theirs at the same time. Alone, nothing is ever enqueued.
    Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);

    bool alone() const { return ranks_.size() == 1; }
    // Do ranks hold different parts of the optimizer's state?
    bool sharded() const { return parameters_.layout().sharded(); }

    // After a microbatch (the first or last of its step) has left a region's raw gradient: after the last,
    // the gradient that the optimizer reads is the sum over all ranks and microbatches, all of it or this
    // rank's part.
    void reduce(const Region& region, bool first, bool last, Stream& stream);
    // values (f32) summed over all ranks; over the ranks that hold the parts of the state.
    void sum_over_all(const Tensor& values, Stream& stream);
    void sum_over_parts(const Tensor& values, Stream& stream);
    // The compute copy of the region, from all parts.
    void gather(const Region& region, Stream& stream);
    // whole (f32, padded) <- the masters of the region, from all parts; on the stream of gather.
    void gather_master(const Region& region, const Tensor& whole, Stream& stream);

    // Matrices between ranks that hold rows of them and their owners: part i of output <- part `index` of
    // rank i's input, among the ranks that share the state; on the optimizer's stream.
    void exchange(const Tensor& output, const Tensor& input, Stream& stream);

    // Bytes that this rank has sent so far.
    int64_t bytes_sent() const;

  private:
    // Sums in the plan's reduce_dtype: over all members in place, and this rank's part of whole into part.
    void sum(Communicator& group, const Tensor& values, Stream& stream);
    void scatter_sum(const Tensor& part, const Tensor& whole, Stream& stream);

    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Ops& ops_;
    Buffer wire_;  // gradients in reduce_dtype, one region at a time; empty if that is f32
    // all_: over all ranks; parts_: over those that share the state; copies_: across `replicate`.
    std::unique_ptr<Communicator> all_, parts_, copies_, gather_, exchange_;
};

}  // namespace speedrun
