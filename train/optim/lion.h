// Lion: the sign of an average of the gradient, with one momentum per element (Chen et al. 2023, algorithm 2;
// equations in kernels/ops/optimizer.h).
#pragma once

#include "train/optim/optimizer.h"

namespace speedrun {

struct LionConfig {
    double beta1 = 0.9, beta2 = 0.95;
    void fields(FieldVisitor& v) {
        v.field("beta1", beta1, "lion: weight of the momentum in the update, below 1", kDecays);
        v.field("beta2", beta2, "lion: decay of the momentum, below 1", kDecays);
    }
    void check(const CheckedGroup&) const {}
};

class Lion final : public ElementwiseOptimizer {
  public:
    using Config = LionConfig;
    Lion(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds() const override { return {{"lion_momentum"}}; }
    void step(const OptimizerShard& shard, const StepContext& context) const override {
        const double lr = group_.lr * context.lr_factor;
        context.ops.lion_step({.parameter = shard.compute,
                               .master = shard.master,
                               .momentum = shard.state[0],
                               .grad = shard.gradient,
                               .grad_scale = context.grad_scale,
                               .learning_rate = static_cast<float>(lr),
                               .beta1 = static_cast<float>(config_.beta1),
                               .beta2 = static_cast<float>(config_.beta2),
                               .weight_decay = static_cast<float>(weight_decay_at(group_, lr))},
                              context.stream);
    }

  private:
    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
