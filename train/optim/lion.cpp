#include "train/optim/lion.h"

namespace speedrun {

void LionConfig::fields(FieldVisitor& v) {
    v.field("beta1", beta1, "lion: share of the momentum in the update, below 1", kDecays);
    v.field("beta2", beta2, "lion: decay of the momentum, below 1", kDecays);
}

void Lion::step(const OptimizerShard& shard, const StepContext& context) const {
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

}  // namespace speedrun
