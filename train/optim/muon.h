// Muon: momentum, then the orthogonal polar factor of each matrix as the update (Jordan et al. 2024; polar factor by Polar
// Express, Amsel et al. 2025). The matrices of a stacked parameter (q, k, v) are orthogonalised one by one. With `normuon`
// the lines of the factor are then scaled by their second moments (Li et al. 2025; equations in kernels/ops/optimizer.h),
// and the factor keeps its norm. The step is lr · √max(1, rows/cols). Weights decay by lr · wd, or by
// lr · lr · √max(1, rows/cols) · wd (weight_decay_by).
//
// `slow_momentum` β adds a second momentum S ← β·S + (1−β)·g (record 92 of modded-nanogpt). From step slow_start on, the first
// momentum F decays by fast_momentum, and (1−slow_blend)·F + slow_blend·S replaces F in the update. A Nesterov update
// (1−μ)·g + μ·blend still has the scheduled momentum μ.
#pragma once

#include <algorithm>
#include <cmath>

#include "train/optim/optimizer.h"

namespace speedrun {

template <>
inline constexpr Word<NormuonLines> kWords<NormuonLines>[] = {
    {"auto", NormuonLines::more}, {"rows", NormuonLines::rows}, {"columns", NormuonLines::columns}};

struct MuonConfig {
    Scheduled<double> momentum = 0.95;
    double momentum_start = 0.85;
    int64_t momentum_warmup_steps = 300;
    int64_t momentum_cooldown_steps = 0;
    DType weights_dtype = DType::f32;
    bool nesterov = true;
    bool cautious = false;
    double polar_epsilon = 1e-6;
    bool normuon = false;
    NormuonLines normuon_lines = NormuonLines::more;
    double beta2 = 0.95;    // normuon
    double epsilon = 1e-8;  // normuon
    int64_t heads_per_matrix = 0;
    double slow_momentum = 0;  // 0: one momentum, and no state of a second one
    int64_t slow_start = 0;    // steps of the group
    double slow_blend = 0.5;
    double fast_momentum = 0;
    void fields(FieldVisitor& v) {
        v.field("momentum", momentum, "muon: momentum between its warm-up and its cooldown, below 1",
                kDecays);
        v.field("momentum_start", momentum_start, "muon: momentum at step 0, below 1", kDecays);
        v.field("momentum_warmup_steps", momentum_warmup_steps, "muon: steps until the full momentum",
                {0, 1e9});
        v.field("momentum_cooldown_steps", momentum_cooldown_steps,
                "muon: last steps of the run, in which momentum returns to momentum_start; 0: none",
                {0, 1e9});
        v.choice("weights_dtype", weights_dtype, "muon: type of the stored weights");
        v.field("nesterov", nesterov, "muon: Nesterov momentum");
        v.field("cautious", cautious, "muon: decay only weights that have the sign of their update");
        v.field("polar_epsilon", polar_epsilon,
                "muon: added to 1.02 times the norm of a matrix, its divisor before orthogonalisation",
                {kMinEpsilon, 1});
        v.field("normuon", normuon,
                "muon: divide the lines of the update by their running root mean square, keep its norm");
        v.choice(
            "normuon_lines", normuon_lines,
            "normuon: scaled lines of a stored matrix: its rows, its columns, or (auto) the direction with more "
            "lines, rows of a square matrix");
        v.field("beta2", beta2, "normuon: decay of the mean squares of the lines, below 1", kDecays);
        v.field("epsilon", epsilon, "normuon: added to the root mean square of a line, above 0",
                {kMinEpsilon, 1});
        v.field(
            "heads_per_matrix", heads_per_matrix,
            "muon: number of heads of q, and of k, that are orthogonalised as one matrix, a divisor of the "
            "number of heads; 0: all heads. Values and the output are always whole matrices",
            {0, 1024});
        v.field("slow_momentum", slow_momentum,
                "muon: decay of a second, slow momentum, below 1; 0: no second momentum", kDecays);
        v.field("slow_start", slow_start, "muon: step of the group from which both momenta are blended",
                {0, 1e12});
        v.field("slow_blend", slow_blend, "muon: share of the slow momentum in the blend", {0, 1});
        v.field("fast_momentum", fast_momentum,
                "muon: decay of the other momentum from slow_start on; 0: as before slow_start", kDecays);
    }
    // Throws a usage error.
    void check(const CheckedGroup& group) const {
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
        if (slow_momentum > 0 && slow_start >= group.steps()) {
            throw_usage(
                "{}.slow_start {} is not below the {} steps that the group takes in {} steps of the run (every {}): "
                "lower it",
                group.name, slow_start, group.steps(), group.run_steps, group.every);
        }
        if (slow_momentum > 0) return;
        const auto expect_default = [&](const char* key, auto value, auto plain) {
            if (value != plain)
                throw_usage("{}.{} is {}, but slow_momentum is 0: set it to {}, or slow_momentum above 0",
                            group.name, key, value, plain);
        };
        const MuonConfig plain;
        expect_default("slow_start", slow_start, plain.slow_start);
        expect_default("slow_blend", slow_blend, plain.slow_blend);
        expect_default("fast_momentum", fast_momentum, plain.fast_momentum);
    }
};

// Share of a ramp of `steps` steps that is complete, at most 1.
inline double share_of(int64_t done, int64_t steps) {
    return done >= steps ? 1 : static_cast<double>(done) / static_cast<double>(steps);
}

// Momentum of a step: linear from momentum_start to momentum over the first momentum_warmup_steps, then momentum, which
// may differ by stage, then linear towards momentum_start over the last momentum_cooldown_steps. The first step of the
// cooldown has momentum, and a step after the last would have momentum_start. Where warm-up and cooldown overlap, the
// smaller share applies. `step` and both lengths count steps of the group; `point` is a step of the run.
inline double muon_momentum_at(const StepSettings& group, const MuonConfig& muon, int64_t step,
                               const StagePoint& point = {}) {
    const double momentum = muon.momentum.at(point);
    const int64_t left = updates_in_last(group, point.left);
    const double share =
        std::min(share_of(step, muon.momentum_warmup_steps), share_of(left, muon.momentum_cooldown_steps));
    if (share == 1) return momentum;
    return muon.momentum_start + share * (momentum - muon.momentum_start);
}

class Muon final : public MatrixOptimizer {
  public:
    using Config = MuonConfig;
    Muon(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds(int64_t rows, int64_t cols) const override {
        std::vector<StateKind> kinds = {{"muon_momentum"}};
        if (config_.slow_momentum > 0) kinds.push_back({"muon_slow_momentum"});
        if (config_.normuon)
            kinds.push_back({"normuon_v", rows * cols, num_lines(config_.normuon_lines, rows, cols)});
        return kinds;
    }
    int64_t heads_per_matrix() const override { return config_.heads_per_matrix; }
    // First the decays of the momenta, then two rates per shape.
    std::vector<float> numbers(const StepContext& context, std::span<const Shape> shapes) const override {
        const bool fast = blends(context) && config_.fast_momentum > 0;
        std::vector<float> numbers{static_cast<float>(fast ? config_.fast_momentum : momentum(context)),
                                   static_cast<float>(config_.slow_momentum)};
        const double lr = group_.lr * context.lr_factor;
        for (const Shape& matrix : shapes) {
            const double shape_scale =
                std::sqrt(std::max(1.0, static_cast<double>(matrix.rows) / static_cast<double>(matrix.cols)));
            // Rates multiply the decay by the learning rate, which includes the factor of the shape. Decay by lr excludes that
            // factor, decay by lr_squared includes it in one of its two learning rates.
            const double unscaled = group_.weight_decay_by == DecayBy::lr ? shape_scale : 1.0;
            const auto rates =
                muon_rates({.learning_rate = static_cast<float>(lr * shape_scale),
                            .weight_decay = static_cast<float>(weight_decay_at(group_, lr) / unscaled)});
            numbers.insert(numbers.end(), rates.begin(), rates.end());
        }
        return numbers;
    }
    // The blend of two momenta is computed with factors of the step.
    bool replays() const override { return config_.slow_momentum == 0; }
    void propose(std::span<const Slice> slices, const StepContext& context) const override {
        const auto step = [&](size_t momentum, int64_t decay) {
            std::vector<op::MuonMomentum::Piece> pieces;
            for (const Slice& slice : slices)
                pieces.push_back({.update = slice.update,
                                  .momentum = slice.shard.state[momentum],
                                  .grad = slice.shard.gradient});
            context.ops.muon_momentum({.pieces = pieces,
                                       .grad_scale = context.grad_scale,
                                       .mu = numbers_of(context, decay, 1),
                                       .nesterov = config_.nesterov},
                                      context.stream);
        };
        if (config_.slow_momentum == 0) return step(0, 0);
        step(1, 1);  // the next one overwrites this update
        step(0, 0);
        if (blends(context))
            for (const Slice& slice : slices) blend(slice, context);
    }
    void transform(std::span<const MatrixBatch> batches, const Tensor& workspace,
                   const StepContext& context) const override {
        std::vector<Tensor> updates;
        for (const MatrixBatch& batch : batches) updates.push_back(batch.updates);
        context.ops.polar_express(
            {.x = updates, .workspace = workspace, .epsilon = static_cast<float>(config_.polar_epsilon)},
            context.stream);
        if (!config_.normuon) return;
        for (const MatrixBatch& batch : batches)
            context.ops.normuon_scale({.update = batch.updates,
                                       .second_moment = batch.state[0],
                                       .grad_scale = context.grad_scale,
                                       .beta2 = static_cast<float>(config_.beta2),
                                       .lines = config_.normuon_lines,
                                       .epsilon = static_cast<float>(config_.epsilon)},
                                      context.stream);
    }
    int64_t workspace(int64_t count, int64_t rows, int64_t cols) const override {
        return op::PolarExpress::workspace_size(count, rows, cols);
    }
    void apply(std::span<const Slice> slices, const StepContext& context) const override {
        std::vector<op::MuonApply::Piece> pieces;
        for (const Slice& slice : slices)
            pieces.push_back({.parameter = slice.shard.compute,
                              .master = slice.shard.master,
                              .update = slice.update,
                              .rates = numbers_of(context, 2 + 2 * slice.shape, 2)});
        context.ops.muon_apply(
            {.pieces = pieces, .grad_scale = context.grad_scale, .cautious = config_.cautious},
            context.stream);
    }

  private:
    double momentum(const StepContext& context) const {
        return muon_momentum_at(group_, config_, context.step, context.point);
    }
    bool blends(const StepContext& context) const {
        return config_.slow_momentum > 0 && context.step >= config_.slow_start;
    }
    // Replaces the update by that of both momenta.
    void blend(const Slice& slice, const StepContext& context) const {
        const double kept = config_.nesterov ? momentum(context) : 1, share = config_.slow_blend;
        const OptimizerShard& shard = slice.shard;
        sum_flat(shard.gradient,
                 {{{.source = shard.gradient,
                    .coefficient = context.grad_scale,
                    .factor = static_cast<float>(1 - kept)},
                   {.source = shard.state[0], .factor = static_cast<float>(kept * (1 - share))},
                   {.source = shard.state[1], .factor = static_cast<float>(kept * share)}}},
                 context);
        context.ops.cast({.out = slice.update, .in = shard.gradient}, context.stream);
    }

    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
