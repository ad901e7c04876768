#include "train/commands/token_draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace speedrun {

namespace {

// Sets the weights to 0 of all tokens that top_k or top_p exclude.
void restrict_weights(std::vector<double>& weights, const DrawOptions& options) {
    const auto size = static_cast<int64_t>(weights.size());
    const int64_t most = options.top_k > 0 ? std::min(options.top_k, size) : size;
    if (most == size && options.top_p >= 1) return;
    std::vector<size_t> order(weights.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    double total = 0, kept = 0;
    for (int64_t i = 0; i < most; ++i) total += weights[order[static_cast<size_t>(i)]];
    for (int64_t i = 0; i < size; ++i) {
        double& weight = weights[order[static_cast<size_t>(i)]];
        // The first token is always kept.
        if (i >= most || (i > 0 && kept >= options.top_p * total))
            weight = 0;
        else
            kept += weight;
    }
}

}  // namespace

int32_t draw_token(std::span<const float> logits, const DrawOptions& options, uint32_t random) {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
    std::vector<double> weights;
    for (const float logit : logits) weights.push_back(std::exp((logit - *best) / options.temperature));
    restrict_weights(weights, options);
    const double uniform = (static_cast<double>(random) + 0.5) * 0x1p-32;
    double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
        left -= weights[i];
        if (left <= 0) return static_cast<int32_t>(i);
    }
    return static_cast<int32_t>(best - logits.begin());
}

}  // namespace speedrun
