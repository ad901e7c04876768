// Rotary position embedding: each pair of dimensions of a head of q and k is rotated by an angle of the position. YaRN rescales
// the frequencies where a window of attention changes from stage to stage.
#pragma once

#include <cmath>
#include <optional>

#include "train/model/parts/attention.h"

namespace speedrun {

// Peng et al. 2023 (YaRN). All layers that name a window rescale at its changes, also layers with another window.
struct YarnConfig {
    std::string window = {};  // name in ModelParts::windows
    double alpha = 1;  // rotations within the old window below which the frequency is multiplied by old/new
    double beta = 32;  // rotations above which a pair keeps its frequency
    double log_scale = 0.2;  // factor of attention's scale: log_scale·ln(new/old) + 1
    void fields(FieldVisitor& v);
};

struct RotaryConfig {
    double base = 10000;
    double fraction = 1;    // share of a head's pairs that are rotated, the fastest first
    bool endpoint = false;  // true: the last frequency is 1/base
    std::optional<YarnConfig> yarn = {};
    void fields(FieldVisitor& v);
    // Returns the number of a head's pairs that are rotated, rounded to nearest.
    int64_t rotated_pairs(int64_t pairs) const { return std::llround(fraction * static_cast<double>(pairs)); }
};

class RotaryPart final : public AttentionPart, public RotaryConfig {
  public:
    static constexpr const char* kKey = "rotary";
    static constexpr const char* kHelp = "rotary embedding of q and k; null: no rotation";
    static constexpr bool kDefault = true;

    RotaryPart(const RotaryConfig& config = {}) : RotaryConfig(config) {}
    void check(const AttentionScope& scope) const override;
    std::string followed_window() const override { return yarn ? yarn->window : std::string(); }
    void build(AttentionLayer& layer) const override;
    // Writes the operation of rotary and of QkNormPart. Null: norm alone.
    static void write(AttentionLayer& layer, const RotaryPart* rotary);
};

// Returns radians per position of each of a head's `pairs` pairs (i, i + pairs). The first n = pairs·fraction are rotated, by
//   base^(−i/n)          Su et al. 2021, eq. 15, of n pairs
//   base^(−i/(n − 1))    with endpoint: evenly spaced exponents from 0 to −1, both included
// and the frequency of the others is 0.
//
// windows: sizes of the window of config.yarn in the stages so far, in keys; a query sees back w − 1. At each change, from r to
// r' = w' − 1, with n_i = r·f_i/2π, the rotations of pair i within r:
//   f_i ← f_i·(s + γ_i·(1 − s))    s = r/r', γ_i = (n_i − alpha)/(beta − alpha), clamped to [0, 1]
// (Peng et al. 2023, section 3.2, applied to the current frequencies rather than to the first ones).
std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs,
                                       const std::vector<int64_t>& windows = {});

// Returns the factor of attention's scale: Π (log_scale·ln(r'/r) + 1) over the changes; 1 without YaRN or changes.
double yarn_scale(const RotaryConfig& config, const std::vector<int64_t>& windows);

// Returns the differences from a rotation of all pairs without the end point: ", 32 of 64 pairs, to 1/1024, YaRN 385 -> 897".
std::string described_rotary(const RotaryConfig& config, int64_t pairs,
                             const std::vector<int64_t>& windows = {});

}  // namespace speedrun
