#include "train/model/parts/loss.h"

#include <algorithm>

#include "data/columns/targets.h"
#include "kernels/device/error.h"
#include "kernels/ops/ops.h"
#include "train/model/graph_writer.h"

namespace speedrun {

void LossConfig::fields(FieldVisitor& v) {
    v.field("padding", padding, "include the padding columns of the vocabulary in the softmax");
    v.field(
        "weights", weights,
        "weights of the cross entropies of the next tokens in the row, the next one first. Training minimises the weighted "
        "sum; validation reports the next token's",
        {0, 1e3});
    v.field(
        "prefix_weight", prefix_weight,
        "weight of the cross entropy of one more target, the longest other token that is a prefix of the next token's bytes. "
        "Tokens without a prefix omit the term. Needs data.vocabulary",
        {0, 1e3});
    v.field(
        "gradient_divisor", gradient_divisor,
        "divisor of a step's summed loss for gradients; 0: number of targets (mean). Set R for a recipe of R ranks that "
        "sums over tokens and averages gradients over ranks. Reported losses are always means",
        {0, 1e12});
}

void LossConfig::check() const {
    constexpr size_t kMax = op::CrossEntropy::kMaxTargets;
    if (weights.empty() || weights.size() > kMax)
        throw_usage("model.loss.weights: {} weights, expected 1 to {}: the next token's first",
                    weights.size(), kMax);
    if (counts_prefixes() && weights.size() == kMax)
        throw_usage(
            "model.loss: {} weights and prefix_weight, which are {} targets in all: at most {} are counted",
            weights.size(), weights.size() + 1, kMax);
    for (const auto& entry : weights.front().entries())
        if (entry.from <= 0 || entry.to < 0)
            throw_usage("model.loss.weights[0] is {}: the weight of the next token must not be 0",
                        std::min(entry.from, entry.to));
}

bool LossConfig::counts_prefixes() const {
    const auto& entries = prefix_weight.entries();
    return std::any_of(entries.begin(), entries.end(),
                       [](const auto& entry) { return entry.from != 0 || entry.to != 0; });
}

std::vector<float> LossConfig::numbers_at(const StagePoint& point) const {
    std::vector<float> numbers;
    for (const Scheduled<double>& weight : weights) numbers.push_back(static_cast<float>(weight.at(point)));
    if (counts_prefixes()) numbers.push_back(static_cast<float>(prefix_weight.at(point)));
    return numbers;
}

LossConfig LossConfig::in_stage(int64_t stage) const {
    const auto in_stage = [&](const Scheduled<double>& weight) {
        return Scheduled<double>({weight.in(stage)});
    };
    LossConfig loss = *this;
    for (Scheduled<double>& weight : loss.weights) weight = in_stage(weight);
    loss.prefix_weight = in_stage(prefix_weight);
    // Removes trailing targets of weight 0.
    while (loss.weights.size() > 1 && loss.weights.back() == Scheduled<double>(0)) loss.weights.pop_back();
    return loss;
}

void LossConfig::add_columns(GraphWriter& w) const {
    if (is_plain()) {
        w.input(targets_column());
        return;
    }
    w.input(targets_column({.num_tokens = num_tokens(), .prefix = counts_prefixes()}));
    w.model.loss_weights = w.model.graph.value("batch.loss_weights", Element::f32,
                                               {{Dimension::numbers, num_targets()}}, Holder::batch);
}

}  // namespace speedrun
