// ShardedState: this rank's shards of masters and optimizer state, and the scales of FP8 tensors: all that a step changes for later
// steps, and all that a checkpoint holds.
#pragma once

#include <memory>
#include <vector>

#include "train/sharding/group_update.h"
#include "train/sharding/scale_store.h"

namespace speedrun {

class ShardedState {
  public:
    // `table` and `stores` must outlive it.
    ShardedState(const OptimizersConfig& config, StepOrder order, const ParameterTable& table,
                 const UpdateStores& stores);

    const BucketLayout& layout() const { return parameters_.layout(); }
    // Updates of the optimizer groups, by index in the config.
    const std::vector<std::unique_ptr<GroupUpdate>>& updates() const { return updates_; }
    ScaleStore& scales() { return scales_; }
    const ScaleStore& scales() const { return scales_; }

    // Enqueues the state of step 0 on the compute stream. Masters keep their values.
    void reset();
    // Returns the state of this rank's shard of a bucket: the master, then the state of its optimizer.
    std::vector<StateShard> shards(const Bucket& bucket) const;

  private:
    ParameterStore& parameters_;
    Runtime& runtime_;
    ScaleStore scales_;
    const std::vector<std::unique_ptr<GroupUpdate>> updates_;
};

}  // namespace speedrun
