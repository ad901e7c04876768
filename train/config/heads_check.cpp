#include "train/config/heads_check.h"

#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

void check_rotary(const std::string& key, const RotaryConfig& rotary, int64_t pairs) {
    const int64_t turning = rotary.turning_pairs(pairs);
    const double asked = rotary.fraction * static_cast<double>(pairs);
    if (turning < 1 || std::abs(asked - static_cast<double>(turning)) > 1e-6)
        throw_usage(
            "{}.fraction {} of {} pairs of a head's dimensions is {:.6g}, expected a whole number from 1 to {}: "
            "say N/{}, or \"rotary\": null to turn none",
            key, rotary.fraction, pairs, asked, pairs, pairs);
    if (rotary.endpoint && turning < 2)
        throw_usage(
            "{}.endpoint: a single pair turns, whose frequency is 1 and not 1/base: expected 2 pairs, "
            "fraction {:.6g}, or endpoint false",
            key, 2.0 / static_cast<double>(pairs));
}

void check_key_offset(const std::string& key, const AttentionConfig& attention, int64_t pairs) {
    const int64_t turning = attention.rotary ? attention.rotary->turning_pairs(pairs) : 0;
    if (turning > 0 && turning < pairs) return;
    throw_usage(
        "{}: rotary turns {} of {} pairs of a head's dimensions, expected some and not all: the others come from the "
        "token before. Say a fraction, such as \"rotary\": {{\"fraction\": 0.5}}",
        key, turning, pairs);
}

void check_sigmoid(const std::string& key, const GateConfig& gate) {
    if (gate.start != GateConfig::kStart)
        throw_usage("{}.start {}: a sigmoid gate starts at {}; name a network that computes it", key,
                    gate.start, GateConfig::kStart);
}

void check_pairs(const std::string& key, const AttentionConfig& attention) {
    if (attention.heads % 2 != 0)
        throw_usage("{}: heads {} cannot be paired, expected an even number", key, attention.heads);
    if (attention.key_offset)
        throw_usage(
            "{}: not with key_offset, for which the row before would be another head's: set one of them to false",
            key);
}

void check_composed(const std::string& key, const AttentionConfig& attention) {
    if (attention.paired)
        throw_usage(
            "{}: not with paired, in whose rows a token's heads stand at two places: leave one of them out",
            key);
    if (attention.compose_heads->maps_start == 0)
        throw_usage(
            "{}.maps_start is 0: weights that are all zero have no direction to be normalised to; give it a value, "
            "such as 1",
            key);
}

}  // namespace speedrun
