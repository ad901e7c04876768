#include "train/model/rotary_frequencies.h"

#include <fmt/format.h>

#include <cmath>

namespace speedrun {

std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs) {
    const int64_t turning = config.turning_pairs(pairs), last = config.endpoint ? turning - 1 : turning;
    std::vector<double> frequencies(static_cast<size_t>(pairs), 0.0);
    for (int64_t i = 0; i < turning; ++i)
        frequencies[static_cast<size_t>(i)] =
            std::pow(config.base, -static_cast<double>(i) / static_cast<double>(last));
    return frequencies;
}

std::string described_rotary(const RotaryConfig& config, int64_t pairs) {
    std::string text;
    if (const int64_t turning = config.turning_pairs(pairs); turning < pairs)
        text += fmt::format(", {} of {} pairs", turning, pairs);
    if (config.endpoint) text += fmt::format(", to 1/{:g}", config.base);
    return text;
}

}  // namespace speedrun
