// Lion: the sign of an average of the gradient, with one momentum per element (Chen et al. 2023, algorithm 2;
// equations in kernels/ops/optimizer.h).
#pragma once

#include "train/config/config.h"
#include "train/optim/lr_schedule.h"
#include "train/optim/optimizer.h"

namespace speedrun {

class Lion final : public ElementwiseOptimizer {
  public:
    explicit Lion(const OptimizerGroupConfig& group) : group_(group) {}
    std::vector<StateKind> state_kinds() const override { return {{"lion_momentum"}}; }
    void step(const OptimizerShard& shard, const StepContext& context) const override {
        const double lr = group_.lr * context.lr_factor;
        context.ops.lion_step({.parameter = shard.compute,
                               .master = shard.master,
                               .momentum = shard.state[0],
                               .grad = shard.gradient,
                               .grad_scale = context.grad_scale,
                               .learning_rate = static_cast<float>(lr),
                               .beta1 = static_cast<float>(group_.beta1),
                               .beta2 = static_cast<float>(group_.beta2),
                               .weight_decay = static_cast<float>(weight_decay_at(group_, lr))},
                              context.stream);
    }

  private:
    const OptimizerGroupConfig group_;
};

}  // namespace speedrun
