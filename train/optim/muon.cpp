#include "train/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/lr_schedule.h"

namespace speedrun {

std::vector<StateKind> Muon::state_kinds(int64_t rows, int64_t cols) const {
    std::vector<StateKind> kinds = {{"muon_momentum"}};
    if (group_.normuon)
        kinds.push_back({"normuon_v", rows * cols, num_lines(group_.normuon_lines, rows, cols)});
    return kinds;
}

void Muon::propose(const Tensor& update, const OptimizerShard& shard, const StepContext& context) const {
    context.ops.muon_momentum(
        {.update = update,
         .momentum = shard.state[0],
         .grad = shard.gradient,
         .grad_scale = context.grad_scale,
         .mu = static_cast<float>(muon_momentum_at(group_, context.step, context.point)),
         .nesterov = group_.nesterov},
        context.stream);
}

void Muon::transform(const MatrixBatch& batch, const StepContext& context) const {
    context.ops.polar_express({.x = batch.updates,
                               .workspace = batch.workspace,
                               .epsilon = static_cast<float>(group_.polar_epsilon)},
                              context.stream);
    if (!group_.normuon) return;
    context.ops.normuon_scale({.update = batch.updates,
                               .second_moment = batch.state[0],
                               .grad_scale = context.grad_scale,
                               .beta2 = static_cast<float>(group_.beta2),
                               .lines = group_.normuon_lines,
                               .epsilon = static_cast<float>(group_.epsilon)},
                              context.stream);
}

void Muon::apply(const OptimizerShard& shard, const Tensor& update, const Shape& matrix,
                 const StepContext& context) const {
    const double shape_scale =
        std::sqrt(std::max(1.0, static_cast<double>(matrix.rows) / static_cast<double>(matrix.cols)));
    const double lr = group_.lr * context.lr_factor;
    // muon_apply multiplies its decay by its learning rate, which has the shape's factor. Decay by lr goes without the
    // factor, decay by lr_squared has it in one of its two learning rates.
    const double unscaled = group_.weight_decay_by == DecayBy::lr ? shape_scale : 1.0;
    context.ops.muon_apply({.parameter = shard.compute,
                            .master = shard.master,
                            .update = update,
                            .grad_scale = context.grad_scale,
                            .learning_rate = static_cast<float>(lr * shape_scale),
                            .weight_decay = static_cast<float>(weight_decay_at(group_, lr) / unscaled),
                            .cautious = group_.cautious},
                           context.stream);
}

}  // namespace speedrun
