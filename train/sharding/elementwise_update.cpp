#include "train/sharding/elementwise_update.h"

namespace speedrun {

ElementwiseUpdate::ElementwiseUpdate(std::unique_ptr<const ElementwiseOptimizer> optimizer,
                                     const std::vector<const Bucket*>& members, const UpdateStores& stores)
    : optimizer_(std::move(optimizer)),
      stores_(stores),
      state_(optimizer_->state_kinds(), members, stores.parameters.layout(), stores.runtime.device()) {}

void ElementwiseUpdate::begin(const Bucket& bucket, const StepContext& context) {
    if (stores_.parameters.layout().valid(bucket) == 0) return;  // the shard is only padding
    optimizer_->step({.compute = stores_.parameters.compute_shard(bucket),
                      .master = stores_.parameters.master_shard(bucket),
                      .gradient = stores_.gradients.shard(bucket),
                      .state = state_.of(bucket)},
                     context);
}

std::vector<StateShard> ElementwiseUpdate::state(const Bucket& bucket) const {
    std::vector<StateShard> shards;
    for (const StateKind& kind : state_.kinds())
        shards.push_back({.kind = kind, .values = state_.of(bucket)[shards.size()]});
    return shards;
}

}  // namespace speedrun
