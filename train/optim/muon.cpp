#include "train/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/update_period.h"

namespace speedrun {

namespace {

// Share of a ramp of `steps` steps that is complete, at most 1.
double share_of(int64_t done, int64_t steps) {
    return done >= steps ? 1 : static_cast<double>(done) / static_cast<double>(steps);
}

}  // namespace

void MuonConfig::fields(FieldVisitor& v) {
    v.field("momentum", momentum, "muon: momentum between its warm-up and its cooldown, below 1", kDecays);
    v.field("momentum_start", momentum_start, "muon: momentum at step 0, below 1", kDecays);
    v.field("momentum_warmup_steps", momentum_warmup_steps, "muon: steps until the full momentum", {0, 1e9});
    v.field("momentum_cooldown_steps", momentum_cooldown_steps,
            "muon: last steps of the run, in which momentum returns to momentum_start; 0: none", {0, 1e9});
    v.choice("weights_dtype", weights_dtype, "muon: type of the stored weights");
    v.field("nesterov", nesterov, "muon: Nesterov momentum");
    v.field("cautious", cautious, "muon: decay only weights that have the sign of their update");
    v.field("polar_epsilon", polar_epsilon,
            "muon: added to 1.02 times the norm of a matrix, its divisor before orthogonalisation",
            {kLeastEpsilon, 1});
    v.field("normuon", normuon,
            "muon: divide the lines of the update by their running root mean square, keep its norm");
    v.choice(
        "normuon_lines", normuon_lines,
        "normuon: scaled lines of a stored matrix: its rows, its columns, or (auto) the direction with more "
        "lines, rows of a square matrix");
    v.field("beta2", beta2, "normuon: decay of the mean squares of the lines, below 1", kDecays);
    v.field("epsilon", epsilon, "normuon: added to the root mean square of a line, above 0",
            {kLeastEpsilon, 1});
    v.field("heads_per_matrix", heads_per_matrix,
            "muon: number of heads of q, and of k, that are orthogonalised as one matrix, a divisor of the "
            "number of heads; 0: all heads. Values and the output are always whole matrices",
            {0, 1024});
}

void MuonConfig::check(const CheckedGroup& group) const {
    if (momentum_cooldown_steps > group.steps()) {
        throw_usage(
            "{}.momentum_cooldown_steps {} exceeds the {} steps that the group takes in {} steps of the run "
            "(every {}): lower it",
            group.name, momentum_cooldown_steps, group.steps(), group.run_steps, group.every);
    }
    if (!normuon && normuon_lines != NormuonLines::more) {
        throw_usage("{}.normuon_lines is {}, but normuon is false: leave it at auto, or set normuon=true",
                    group.name, word_of(normuon_lines));
    }
}

double muon_momentum_at(const StepSettings& group, const MuonConfig& muon, int64_t step,
                        const StagePoint& point) {
    const double momentum = muon.momentum.at(point);
    const int64_t left = updates_in_last(group, point.left);
    const double share =
        std::min(share_of(step, muon.momentum_warmup_steps), share_of(left, muon.momentum_cooldown_steps));
    if (share == 1) return momentum;
    return muon.momentum_start + share * (momentum - muon.momentum_start);
}

std::vector<StateKind> Muon::state_kinds(int64_t rows, int64_t cols) const {
    std::vector<StateKind> kinds = {{"muon_momentum"}};
    if (config_.normuon)
        kinds.push_back({"normuon_v", rows * cols, num_lines(config_.normuon_lines, rows, cols)});
    return kinds;
}

void Muon::propose(const Tensor& update, const OptimizerShard& shard, const StepContext& context) const {
    context.ops.muon_momentum(
        {.update = update,
         .momentum = shard.state[0],
         .grad = shard.gradient,
         .grad_scale = context.grad_scale,
         .mu = static_cast<float>(muon_momentum_at(group_, config_, context.step, context.point)),
         .nesterov = config_.nesterov},
        context.stream);
}

void Muon::transform(const MatrixBatch& batch, const StepContext& context) const {
    context.ops.polar_express({.x = batch.updates,
                               .workspace = batch.workspace,
                               .epsilon = static_cast<float>(config_.polar_epsilon)},
                              context.stream);
    if (!config_.normuon) return;
    context.ops.normuon_scale({.update = batch.updates,
                               .second_moment = batch.state[0],
                               .grad_scale = context.grad_scale,
                               .beta2 = static_cast<float>(config_.beta2),
                               .lines = config_.normuon_lines,
                               .epsilon = static_cast<float>(config_.epsilon)},
                              context.stream);
}

void Muon::apply(const OptimizerShard& shard, const Tensor& update, const Shape& matrix,
                 const StepContext& context) const {
    const double shape_scale =
        std::sqrt(std::max(1.0, static_cast<double>(matrix.rows) / static_cast<double>(matrix.cols)));
    const double lr = group_.lr * context.lr_factor;
    // muon_apply multiplies its decay by its learning rate, which includes the factor of the shape. Decay by lr excludes
    // that factor, decay by lr_squared includes it in one of its two learning rates.
    const double unscaled = group_.weight_decay_by == DecayBy::lr ? shape_scale : 1.0;
    context.ops.muon_apply({.parameter = shard.compute,
                            .master = shard.master,
                            .update = update,
                            .grad_scale = context.grad_scale,
                            .learning_rate = static_cast<float>(lr * shape_scale),
                            .weight_decay = static_cast<float>(weight_decay_at(group_, lr) / unscaled),
                            .cautious = config_.cautious},
                           context.stream);
}

}  // namespace speedrun
