#include "train/optim/adamw.h"

#include <utility>

namespace speedrun {

namespace {

// A bf16 has 8 significant bits, and half a unit of its last bit is this share of a moment. If a step shrinks a moment by
// less, some values round back to themselves and never shrink.
constexpr double kLeastBf16Decay = 1.0 / 256;

}  // namespace

void AdamwConfig::fields(FieldVisitor& v) {
    v.field("beta1", beta1, "adamw: decay of the mean gradient, below 1", kDecays);
    v.field("beta2", beta2, "adamw: decay of the mean squared gradient, below 1", kDecays);
    v.field("epsilon", epsilon, "adamw: added to the denominator, above 0", {kLeastEpsilon, 1});
    v.choice("moments_dtype", moments_dtype,
             "adamw: type of both stored moments; steps compute in f32, bf16 is rounded to nearest");
    v.choice("weights_dtype", weights_dtype,
             "adamw: type of the stored weights; steps compute in f32. bf16 is rounded to nearest and has no "
             "master of f32: an update below 1/512 of a weight is lost");
    v.field("cautious", cautious, "adamw: decay only weights that have the sign of their update");
    v.field(
        "decays_unmoved", decays_unmoved,
        "adamw, cautious: decay weights with an update of 0 too, such as rows of a table without a token");
}

void AdamwConfig::check(const CheckedGroup& group) const {
    if (!decays_unmoved && !cautious) {
        throw_usage(
            "{}.decays_unmoved is false, but cautious is false, so that every weight decays: leave it at true, "
            "or set cautious=true",
            group.name);
    }
    if (moments_dtype == DType::f32) return;
    for (const auto& [key, beta] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}}) {
        if (beta <= 1 - kLeastBf16Decay) continue;
        throw_usage(
            "{}.{} is {}, but moments_dtype is {}, in which a moment that shrinks by less than 1/256 in a step "
            "is rounded back and never does: lower it to {} or less, or set moments_dtype=f32",
            group.name, key, beta, word_of(moments_dtype), 1 - kLeastBf16Decay);
    }
}

std::vector<StateKind> Adamw::state_kinds() const {
    return {{.name = "adamw_m", .dtype = config_.moments_dtype},
            {.name = "adamw_v", .dtype = config_.moments_dtype}};
}

void Adamw::step(const OptimizerShard& shard, const StepContext& context) const {
    const double lr = group_.lr * context.lr_factor;
    context.ops.adamw_step({.parameter = shard.compute,
                            .master = shard.master,
                            .first_moment = shard.state[0],
                            .second_moment = shard.state[1],
                            .grad = shard.gradient,
                            .grad_scale = context.grad_scale,
                            .learning_rate = static_cast<float>(lr),
                            .beta1 = static_cast<float>(config_.beta1),
                            .beta2 = static_cast<float>(config_.beta2),
                            .epsilon = static_cast<float>(config_.epsilon),
                            .weight_decay = static_cast<float>(weight_decay_at(group_, lr)),
                            .step = context.step + 1,
                            .cautious = config_.cautious,
                            .decays_unmoved = config_.decays_unmoved},
                           context.stream);
}

}  // namespace speedrun
