// AdamW: two moments per element, f32 or bf16 (Loshchilov & Hutter 2019, algorithm 2; equations in
// kernels/ops/optimizer.h).
#pragma once

#include <utility>

#include "train/optim/optimizer.h"

namespace speedrun {

// Largest decay of a moment in bf16. A bf16 has 8 significant bits: some values that shrink by less than 1/256 are rounded to
// themselves and never shrink.
constexpr double kMaxBf16Decay = 1 - 1.0 / 256;

struct AdamwConfig {
    double beta1 = 0.9, beta2 = 0.95;
    double epsilon = 1e-8;
    DType moments_dtype = DType::f32;
    DType weights_dtype = DType::f32;
    bool cautious = false;
    bool decays_unmoved = true;
    void fields(FieldVisitor& v) {
        v.field("beta1", beta1, "adamw: decay of the mean gradient, below 1", kDecays);
        v.field("beta2", beta2, "adamw: decay of the mean squared gradient, below 1", kDecays);
        v.field("epsilon", epsilon, "adamw: added to the denominator, above 0", {kMinEpsilon, 1});
        v.choice("moments_dtype", moments_dtype,
                 "adamw: type of both stored moments; steps compute in f32, bf16 is rounded to nearest");
        v.choice(
            "weights_dtype", weights_dtype,
            "adamw: type of the stored weights; steps compute in f32. bf16 is rounded to nearest and has no "
            "master of f32: an update below 1/512 of a weight is lost");
        v.field("cautious", cautious, "adamw: decay only weights that have the sign of their update");
        v.field(
            "decays_unmoved", decays_unmoved,
            "adamw, cautious: decay weights with an update of 0, such as rows of a table without a token");
    }
    // Throws a usage error.
    void check(const CheckedGroup& group) const {
        if (!decays_unmoved && !cautious) {
            throw_usage(
                "{}.decays_unmoved is false, but cautious is false, so that every weight decays: leave it at true, "
                "or set cautious=true",
                group.name);
        }
        if (moments_dtype == DType::f32) return;
        for (const auto& [key, beta] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}}) {
            if (beta <= kMaxBf16Decay) continue;
            throw_usage(
                "{}.{} is {}, but moments_dtype is {}, which rounds away a decay of less than 1/256 per step: "
                "lower it to {} or less, or set moments_dtype=f32",
                group.name, key, beta, word_of(moments_dtype), kMaxBf16Decay);
        }
    }
};

class Adamw final : public ElementwiseOptimizer {
  public:
    using Config = AdamwConfig;
    Adamw(const StepSettings& group, const Config& config) : group_(group), config_(config) {}
    std::vector<StateKind> state_kinds() const override {
        return {{.name = "adamw_m", .dtype = config_.moments_dtype},
                {.name = "adamw_v", .dtype = config_.moments_dtype}};
    }
    std::vector<float> numbers(const StepContext& context) const override {
        const double lr = group_.lr * context.lr_factor;
        const auto rates = adamw_rates({.learning_rate = static_cast<float>(lr),
                                        .weight_decay = static_cast<float>(weight_decay_at(group_, lr)),
                                        .beta1 = static_cast<float>(config_.beta1),
                                        .beta2 = static_cast<float>(config_.beta2),
                                        .step = context.step + 1});
        return {rates.begin(), rates.end()};
    }
    void step(const OptimizerShard& shard, const StepContext& context) const override {
        context.ops.adamw_step({.parameter = shard.compute,
                                .master = shard.master,
                                .first_moment = shard.state[0],
                                .second_moment = shard.state[1],
                                .grad = shard.gradient,
                                .grad_scale = context.grad_scale,
                                .rates = context.numbers,
                                .beta1 = static_cast<float>(config_.beta1),
                                .beta2 = static_cast<float>(config_.beta2),
                                .epsilon = static_cast<float>(config_.epsilon),
                                .cautious = config_.cautious,
                                .decays_unmoved = config_.decays_unmoved},
                               context.stream);
    }

  private:
    const StepSettings group_;
    const Config config_;
};

}  // namespace speedrun
