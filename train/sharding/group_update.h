// GroupUpdate: update of one optimizer group's shards on this rank, bucket by bucket. Selects the slices that the
// optimizer (train/optim) receives, and owns the memory of its state.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/reducer.h"
#include "train/sharding/state_memory.h"

namespace speedrun {

// Dependencies of updates; they must outlive them.
struct UpdateStores {
    ParameterStore& parameters;
    GradientStore& gradients;
    Reducer& reducer;
    Runtime& runtime;
    // Elements of the matrices transformed in one batch, at least one matrix. Bounds the workspace.
    int64_t max_batched = int64_t{96} << 20;
};

using Buckets = std::span<const Bucket* const>;

class GroupUpdate {
  public:
    virtual ~GroupUpdate() = default;
    // True if begin() completes a bucket's update. Otherwise finish() changes master and compute copy.
    virtual bool is_single_phase() const = 0;
    // Returns StepContext::numbers of a step; always of one size.
    virtual std::vector<float> numbers(const StepContext& context) const = 0;
    // True if steps of the group differ only in numbers(): their work can be captured.
    virtual bool replays() const = 0;
    // Called for each bucket once, in the order given to make_group_update(), after the gradients are reduced. They are not
    // read later.
    virtual void begin(Buckets buckets, const StepContext& context) = 0;
    // Called once, after begin() of all buckets.
    virtual void compute_updates(const StepContext&) {}
    // Called for each bucket once, in the same order.
    virtual void finish(Buckets, const StepContext&) {}
    // Enqueues the initial state.
    virtual void reset(Stream& stream) = 0;
    // Returns the optimizer state of this rank's shard of a bucket, for checkpoints; excludes the master.
    virtual std::vector<StateShard> state(const Bucket& bucket) const = 0;
};

// Creates the update of one group. members: its buckets in the order of updates.
std::unique_ptr<GroupUpdate> make_group_update(const OptimizerGroupConfig& group,
                                               const std::vector<const Bucket*>& members,
                                               const UpdateStores& stores);
// Creates the updates of all groups; index: group in the config.
std::vector<std::unique_ptr<GroupUpdate>> make_group_updates(const OptimizersConfig& config, StepOrder order,
                                                             const UpdateStores& stores);

}  // namespace speedrun
