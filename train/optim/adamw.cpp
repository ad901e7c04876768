#include "train/optim/adamw.h"

#include "train/optim/lr_schedule.h"

namespace speedrun {

void Adamw::step(const OptimizerShard& shard, const StepContext& context) const {
    const double lr = group_.lr * context.lr_factor;
    context.ops.adamw_step({.parameter = shard.compute,
                            .master = shard.master,
                            .first_moment = shard.state[0],
                            .second_moment = shard.state[1],
                            .grad = shard.gradient,
                            .grad_scale = context.grad_scale,
                            .learning_rate = static_cast<float>(lr),
                            .beta1 = static_cast<float>(group_.beta1),
                            .beta2 = static_cast<float>(group_.beta2),
                            .epsilon = static_cast<float>(group_.epsilon),
                            .weight_decay = static_cast<float>(weight_decay_at(group_, lr)),
                            .step = context.step + 1,
                            .cautious = group_.cautious,
                            .decays_unmoved = group_.decays_unmoved},
                           context.stream);
}

}  // namespace speedrun
