#include <utility>

#include "kernels/device/error.h"
#include "train/config/config.h"
#include "train/config/update_period.h"

namespace speedrun {

namespace {

// A bf16 has 8 bits: of a moment that is to shrink by less than this share in a step, half a unit of its last bit, some
// values round back to what they were and never shrink.
constexpr double kLeastBf16Decay = 1.0 / 256;

// Below, an f32's reciprocal could be infinite, and a matrix of zeros no number.
constexpr double kLeastEpsilon = 1e-30;

// The factor of the old value of a running mean in a step. With 1 the mean never moves, and its bias correction divides by
// 0. An f32 closer to 1 is 1.
constexpr Limits kDecays{0, 0.999999};

}  // namespace

void OptimizerGroupConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "optimizer of the group");
    v.field("params", params,
            "name patterns (*, ?) of its parameters; the first group that matches takes a parameter");
    v.field("lr", lr, "learning rate at the top of the schedule", {0, 1e3});
    v.field("weight_decay", weight_decay,
            "decoupled: a step shrinks weights by this times what weight_decay_by says", {0, 1e3});
    v.choice(
        "weight_decay_by", weight_decay_by,
        "what weight_decay is multiplied by; lr: the learning rate; lr_squared: its square, for muon times the "
        "matrix's factor max(1, rows/cols)^0.5");
    v.field("beta1", beta1, "constant of the optimizer's formula; adamw: decay of the mean gradient, below 1",
            kDecays);
    v.field(
        "beta2", beta2,
        "constant of the optimizer's formula; adamw: decay of the mean squared gradient; normuon: of the mean squares of the update's lines; below 1",
        kDecays);
    v.field("epsilon", epsilon,
            "adamw: added to the denominator; normuon: to the root mean square of a line; above 0",
            {kLeastEpsilon, 1});
    v.choice(
        "moments_dtype", moments_dtype,
        "adamw: in which both moments are kept between steps, which compute in f32; bf16: rounded to the nearest");
    v.choice(
        "weights_dtype", weights_dtype,
        "adamw, muon: in which the weights are kept between steps, which compute in f32; bf16: rounded to the "
        "nearest, without a master of f32, so that what changes a weight by less than 1/512 of itself is lost");
    v.field("momentum", momentum, "muon: momentum, between its warm-up and its cooldown, below 1", kDecays);
    v.field("momentum_start", momentum_start, "muon: momentum at step 0, below 1", kDecays);
    v.field("momentum_warmup_steps", momentum_warmup_steps, "muon: steps until the full momentum", {0, 1e9});
    v.field("momentum_cooldown_steps", momentum_cooldown_steps,
            "muon: last steps of the run, in which momentum goes back to momentum_start; 0: it does not",
            {0, 1e9});
    v.field("nesterov", nesterov, "muon: Nesterov momentum");
    v.field(
        "polar_epsilon", polar_epsilon,
        "muon: added to 1.02 times the norm of a matrix, by which it is divided before it is orthogonalised",
        {kLeastEpsilon, 1});
    v.field("normuon", normuon,
            "muon: divide the lines of the update by their running root mean square, keep its norm");
    v.choice(
        "normuon_lines", normuon_lines,
        "normuon: which lines of a matrix, as it is stored: its rows, its columns, or (auto) those that are more, "
        "rows of a square one");
    v.field(
        "heads_per_matrix", heads_per_matrix,
        "muon: so many heads of q, and so many of k, are one matrix that is orthogonalised; 0: all heads are. "
        "Divides the number of heads; values and the output are whole matrices always",
        {0, 1024});
    v.field("cautious", cautious,
            "adamw, muon: decay only where the update has the weight's sign, and so shrinks it too");
    v.field(
        "decays_unmoved", decays_unmoved,
        "adamw, cautious: weights that the update leaves where they are decay too, such as rows of a table that no token had; "
        "false: only those that it shrinks");
    v.field("every", every,
            "step once in so many steps of the run, on the sum of their gradients; those in between are not "
            "in the gradient norm",
            {1, 64});
}

void OptimizersConfig::fields(FieldVisitor& v) {
    v.field("clip", clip, "largest global gradient norm; 0: no clipping", {0, 1e9});
    v.choice("clip_norm", clip_norm,
             "p of that norm, which is logged as grad_norm; inf: the largest magnitude");
    v.list(
        "groups", "optimizers and their parameters; together they cover every parameter", groups.size(),
        [this](size_t n) { groups.resize(n); },
        [this](size_t i, FieldVisitor& inner) { groups[i].fields(inner); });
}

void OptimizersConfig::check_precision(DType real) const {
    for (size_t i = 0; i < groups.size(); ++i) {
        if (groups[i].weights_dtype == DType::f32 || real == groups[i].weights_dtype) continue;
        throw_usage(
            "optimizers.groups[{}].weights_dtype is {}, but the run computes in {}, which would keep a copy of "
            "{} all the same: set precision=bf16, which runs on every device, or weights_dtype=f32",
            i, word_of(groups[i].weights_dtype), word_of(real), word_of(real));
    }
}

void OptimizersConfig::validate(int64_t steps) const {
    if (groups.empty()) throw_usage("optimizers.groups is empty: no parameter would be trained");
    for (size_t i = 0; i < groups.size(); ++i)
        groups[i].validate(fmt::format("optimizers.groups[{}]", i), steps);
}

void OptimizerGroupConfig::validate(const std::string& name, int64_t steps) const {
    if (params.empty()) throw_usage("{}.params is empty", name);
    if (cautious && type == OptimizerKind::lion) {
        throw_usage(
            "{}.cautious is true, but lion decays every weight: set it to false, or type to adamw or muon",
            name);
    }
    if (!decays_unmoved && !(cautious && type == OptimizerKind::adamw))
        throw_usage(
            "{}.decays_unmoved is false, but {}: leave it at true, or set type=adamw and cautious=true", name,
            cautious ? fmt::format("type is {}", word_of(type))
                     : "cautious is false, so that every weight decays");
    if (heads_per_matrix > 0 && type != OptimizerKind::muon)
        throw_usage(
            "{}.heads_per_matrix is {}, but type is {}, which knows no matrices: set it to 0, or type=muon",
            name, heads_per_matrix, word_of(type));
    check_moments(name);
    check_weights(name);
    if (momentum_cooldown_steps > 0 && type != OptimizerKind::muon) {
        throw_usage(
            "{}.momentum_cooldown_steps is {}, but type is {}, whose beta1 is no momentum that cools down: set "
            "it to 0, or type=muon",
            name, momentum_cooldown_steps, word_of(type));
    }
    if (const int64_t updates = updates_before(*this, steps); momentum_cooldown_steps > updates) {
        throw_usage(
            "{}.momentum_cooldown_steps {} exceeds the {} steps that the group takes in {} steps of the run "
            "(every {}): lower it",
            name, momentum_cooldown_steps, updates, steps, every);
    }
    const bool is_normuon = type == OptimizerKind::muon && normuon;
    if (!is_normuon && normuon_lines != NormuonLines::more) {
        throw_usage(
            "{}.normuon_lines is {}, but type is {} and normuon {}: leave it at auto, or set type=muon and "
            "normuon=true",
            name, word_of(normuon_lines), word_of(type), normuon);
    }
}

void OptimizerGroupConfig::check_moments(const std::string& name) const {
    if (moments_dtype == DType::f32) return;
    if (type != OptimizerKind::adamw) {
        throw_usage("{}.moments_dtype is {}, but type is {}: set it to f32, or type=adamw", name,
                    word_of(moments_dtype), word_of(type));
    }
    for (const auto& [key, beta] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}}) {
        if (beta <= 1 - kLeastBf16Decay) continue;
        throw_usage(
            "{}.{} is {}, but moments_dtype is {}, in which a moment that shrinks by less than 1/256 in a step "
            "is rounded back and never does: lower it to {} or less, or set moments_dtype=f32",
            name, key, beta, word_of(moments_dtype), 1 - kLeastBf16Decay);
    }
}

void OptimizerGroupConfig::check_weights(const std::string& name) const {
    if (weights_dtype == DType::f32 || type != OptimizerKind::lion) return;
    throw_usage(
        "{}.weights_dtype is {}, but type is {}, which steps masters of f32: set it to f32, or type to "
        "adamw or muon",
        name, word_of(weights_dtype), word_of(type));
}

}  // namespace speedrun
