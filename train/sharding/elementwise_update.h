// Update of a group with an elementwise optimizer: each rank updates its shards.
#pragma once

#include "train/sharding/group_update.h"
#include "train/sharding/state_memory.h"

namespace speedrun {

class ElementwiseUpdate final : public GroupUpdate {
  public:
    ElementwiseUpdate(std::unique_ptr<const ElementwiseOptimizer> optimizer,
                      const std::vector<const Bucket*>& members, const UpdateStores& stores);
    bool at_once() const override { return true; }
    void begin(const Bucket& bucket, const StepContext& context) override;
    void reset(Stream& stream) override { state_.reset(stores_.runtime.ops(), stream); }
    std::vector<StateShard> state(const Bucket& bucket) const override;

  private:
    const std::unique_ptr<const ElementwiseOptimizer> optimizer_;
    const UpdateStores stores_;
    StateMemory state_;
};

}  // namespace speedrun
