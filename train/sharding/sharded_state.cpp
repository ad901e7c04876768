#include "train/sharding/sharded_state.h"

namespace speedrun {

ShardedState::ShardedState(const OptimizersConfig& config, StepOrder order, const ParameterTable& table,
                           const UpdateStores& stores)
    : parameters_(stores.parameters),
      runtime_(stores.runtime),
      scales_(table.scales(), stores.reducer, stores.runtime),
      updates_(make_group_updates(config, order, stores)) {}

void ShardedState::reset() {
    for (const auto& update : updates_) update->reset(runtime_.compute());
    scales_.reset(runtime_.compute());
}

std::vector<StateShard> ShardedState::shards(const Bucket& bucket) const {
    std::vector<StateShard> shards = {
        {{.name = "master", .dtype = bucket.master}, parameters_.master_shard(bucket)}};
    for (const StateShard& shard : updates_[static_cast<size_t>(bucket.group)]->state(bucket))
        shards.push_back(shard);
    return shards;
}

}  // namespace speedrun
