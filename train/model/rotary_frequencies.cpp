#include "train/model/rotary_frequencies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace speedrun {

namespace {

// How far back a query sees.
double reach_of(int64_t keys) {
    return static_cast<double>(keys - 1);
}

}  // namespace

std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs,
                                       const std::vector<int64_t>& windows) {
    const int64_t turning = config.turning_pairs(pairs), last = config.endpoint ? turning - 1 : turning;
    std::vector<double> frequencies(static_cast<size_t>(pairs), 0.0);
    for (int64_t i = 0; i < turning; ++i)
        frequencies[static_cast<size_t>(i)] =
            std::pow(config.base, -static_cast<double>(i) / static_cast<double>(last));
    for (size_t change = 1; config.yarn && change < windows.size(); ++change) {
        const double reach = reach_of(windows[change - 1]), ratio = reach / reach_of(windows[change]);
        for (double& frequency : frequencies) {
            const double rotations = reach * frequency / (2 * std::numbers::pi);
            const double kept = std::clamp(
                (rotations - config.yarn->alpha) / (config.yarn->beta - config.yarn->alpha), 0.0, 1.0);
            frequency *= ratio + kept * (1 - ratio);
        }
    }
    return frequencies;
}

double yarn_scale(const RotaryConfig& config, const std::vector<int64_t>& windows) {
    double scale = 1;
    for (size_t change = 1; config.yarn && change < windows.size(); ++change)
        scale *=
            config.yarn->log_scale * std::log(reach_of(windows[change]) / reach_of(windows[change - 1])) + 1;
    return scale;
}

std::string described_rotary(const RotaryConfig& config, int64_t pairs, const std::vector<int64_t>& windows) {
    std::string text;
    if (const int64_t turning = config.turning_pairs(pairs); turning < pairs)
        text += fmt::format(", {} of {} pairs", turning, pairs);
    if (config.endpoint) text += fmt::format(", to 1/{:g}", config.base);
    if (config.yarn && windows.size() > 1) text += fmt::format(", YaRN {}", fmt::join(windows, " -> "));
    return text;
}

}  // namespace speedrun
