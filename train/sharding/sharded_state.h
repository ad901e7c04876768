// ShardedState: this rank's shards of masters and optimizer state, and FP8 scales. This is all state that a step
// changes for later steps, and the content of a checkpoint.
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
    // Updates of the optimizer groups; index: group in the config.
    const std::vector<std::unique_ptr<GroupUpdate>>& updates() const { return updates_; }
    ScaleStore& scales() { return scales_; }
    const ScaleStore& scales() const { return scales_; }

    // Enqueues the initial optimizer state and scales on compute. Masters keep their values.
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
