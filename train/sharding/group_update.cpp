#include "train/sharding/group_update.h"

#include "train/optim/optimizers.h"
#include "train/sharding/elementwise_update.h"
#include "train/sharding/matrix_update.h"

namespace speedrun {

namespace {

using Members = std::vector<const Bucket*>;

std::unique_ptr<GroupUpdate> update_by(std::unique_ptr<const ElementwiseOptimizer> optimizer,
                                       const Members& members, const UpdateStores& stores) {
    return std::make_unique<ElementwiseUpdate>(std::move(optimizer), members, stores);
}
std::unique_ptr<GroupUpdate> update_by(std::unique_ptr<const MatrixOptimizer> optimizer,
                                       const Members& members, const UpdateStores& stores) {
    return std::make_unique<MatrixUpdate>(std::move(optimizer), members, stores);
}

}  // namespace

std::unique_ptr<GroupUpdate> make_group_update(const OptimizerGroupConfig& group, const Members& members,
                                               const UpdateStores& stores) {
    return std::visit([&](auto optimizer) { return update_by(std::move(optimizer), members, stores); },
                      make_optimizer(group));
}

std::vector<std::unique_ptr<GroupUpdate>> make_group_updates(const OptimizersConfig& config, StepOrder order,
                                                             const UpdateStores& stores) {
    const BucketLayout& layout = stores.parameters.layout();
    std::vector<Members> members(config.groups.size());
    for (const int id : order == StepOrder::reverse ? layout.backward_order() : layout.forward_order())
        members[static_cast<size_t>(layout[id].group)].push_back(&layout[id]);
    std::vector<std::unique_ptr<GroupUpdate>> updates;
    for (size_t g = 0; g < members.size(); ++g)
        updates.push_back(make_group_update(config.groups[g], members[g], stores));
    return updates;
}

}  // namespace speedrun
