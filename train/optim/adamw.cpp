#include "train/optim/adamw.h"

namespace speedrun {

void Adamw::step(const OptimizerShard& shard, const StepContext& context) const {
    context.ops.adamw_step({.parameter = shard.compute,
                            .master = shard.master,
                            .first_moment = shard.state[0],
                            .second_moment = shard.state[1],
                            .grad = shard.gradient,
                            .grad_scale = context.grad_scale,
                            .learning_rate = static_cast<float>(group_.lr * context.lr_factor),
                            .beta1 = static_cast<float>(group_.beta1),
                            .beta2 = static_cast<float>(group_.beta2),
                            .epsilon = static_cast<float>(group_.epsilon),
                            .weight_decay = static_cast<float>(group_.weight_decay),
                            .step = context.step + 1},
                           context.stream);
}

}  // namespace speedrun
