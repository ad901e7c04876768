#include "train/optim/adamw.h"

namespace speedrun {

void Adamw::step(const OptimizerShard& shard, const StepContext& context) const {
    const AdamwOptions options{.learning_rate = static_cast<float>(group_.lr * context.lr_factor),
                               .beta1 = static_cast<float>(group_.beta1),
                               .beta2 = static_cast<float>(group_.beta2),
                               .epsilon = static_cast<float>(group_.epsilon),
                               .weight_decay = static_cast<float>(group_.weight_decay),
                               .step = context.step + 1};
    context.ops.adamw_step(shard.compute, shard.master, shard.state[0], shard.state[1], shard.gradient,
                           context.grad_scale, options, context.stream);
}

}  // namespace speedrun
