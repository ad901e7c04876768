#include "train/sharding/group_update.h"

#include "train/optim/optimizers.h"
#include "train/sharding/matrix_update.h"

namespace speedrun {

namespace {

using Members = std::vector<const Bucket*>;

// An elementwise optimizer: each rank updates its shards.
class ElementwiseUpdate final : public GroupUpdate {
  public:
    ElementwiseUpdate(std::unique_ptr<const ElementwiseOptimizer> optimizer, const Members& members,
                      const UpdateStores& stores)
        : optimizer_(std::move(optimizer)),
          stores_(stores),
          state_(optimizer_->state_kinds(), members, stores.parameters.layout(), stores.runtime.device()) {}
    bool is_single_phase() const override { return true; }
    std::vector<float> numbers(const StepContext& context) const override {
        return optimizer_->numbers(context);
    }
    bool replays() const override { return true; }
    void begin(Buckets buckets, const StepContext& context) override {
        for (const Bucket* bucket : buckets) {
            if (stores_.parameters.layout().valid(*bucket) == 0) continue;  // the shard is only padding
            optimizer_->step({.compute = stores_.parameters.compute_shard(*bucket),
                              .master = stores_.parameters.master_shard(*bucket),
                              .gradient = stores_.gradients.shard(*bucket),
                              .state = state_.of(*bucket)},
                             context);
        }
    }
    void reset(Stream& stream) override { state_.reset(stores_.runtime.ops(), stream); }
    std::vector<StateShard> state(const Bucket& bucket) const override { return state_.shards(bucket); }

  private:
    const std::unique_ptr<const ElementwiseOptimizer> optimizer_;
    const UpdateStores stores_;
    StateMemory state_;
};

std::unique_ptr<GroupUpdate> update_by(std::unique_ptr<const ElementwiseOptimizer> optimizer,
                                       const Members& members, const UpdateStores& stores) {
    return std::make_unique<ElementwiseUpdate>(std::move(optimizer), members, stores);
}
std::unique_ptr<GroupUpdate> update_by(std::unique_ptr<const MatrixOptimizer> optimizer,
                                       const Members& members, const UpdateStores& stores) {
    return std::make_unique<MatrixUpdate>(std::move(optimizer), members, stores);
}

// An update, and the extensions of its group after it.
class ExtendedUpdate final : public GroupUpdate {
  public:
    ExtendedUpdate(std::unique_ptr<GroupUpdate> update, const GroupExtensions& extensions,
                   const Members& members, const UpdateStores& stores)
        : update_(std::move(update)), stores_(stores) {
        for (const auto& [key, extension] : extensions.all())
            extensions_.push_back(
                {extension, StateMemory(extension->state_kinds(), members, stores.parameters.layout(),
                                        stores.runtime.device())});
    }
    bool is_single_phase() const override { return update_->is_single_phase(); }
    std::vector<float> numbers(const StepContext& context) const override {
        return update_->numbers(context);
    }
    bool replays() const override { return false; }  // an extension may enqueue other work in each step
    void begin(Buckets buckets, const StepContext& context) override {
        update_->begin(buckets, context);
        if (is_single_phase()) extend(buckets, context);
    }
    void compute_updates(const StepContext& context) override { update_->compute_updates(context); }
    void finish(Buckets buckets, const StepContext& context) override {
        update_->finish(buckets, context);
        if (!is_single_phase()) extend(buckets, context);
    }
    void reset(Stream& stream) override {
        update_->reset(stream);
        for (auto& [extension, state] : extensions_) state.reset(stores_.runtime.ops(), stream);
    }
    std::vector<StateShard> state(const Bucket& bucket) const override {
        std::vector<StateShard> shards = update_->state(bucket);
        for (const auto& [extension, state] : extensions_)
            for (StateShard& shard : state.shards(bucket)) shards.push_back(std::move(shard));
        return shards;
    }

  private:
    void extend(Buckets buckets, const StepContext& context) const {
        for (const Bucket* bucket : buckets) {
            if (stores_.parameters.layout().valid(*bucket) == 0)
                continue;  // the shard of this rank is padding
            for (const auto& [extension, state] : extensions_)
                extension->after_update({.compute = stores_.parameters.compute_shard(*bucket),
                                         .master = stores_.parameters.master_shard(*bucket),
                                         .gradient = {},
                                         .state = state.of(*bucket)},
                                        context);
        }
    }

    struct Extended {
        GroupExtensions::Held extension;
        StateMemory state;
    };
    const std::unique_ptr<GroupUpdate> update_;
    const UpdateStores stores_;
    std::vector<Extended> extensions_;
};

}  // namespace

std::unique_ptr<GroupUpdate> make_group_update(const OptimizerGroupConfig& group, const Members& members,
                                               const UpdateStores& stores) {
    std::unique_ptr<GroupUpdate> update =
        std::visit([&](auto optimizer) { return update_by(std::move(optimizer), members, stores); },
                   make_optimizer(group));
    if (group.extensions.all().empty()) return update;
    return std::make_unique<ExtendedUpdate>(std::move(update), group.extensions, members, stores);
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
