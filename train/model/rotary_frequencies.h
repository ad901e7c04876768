// The angles that rotary position embedding turns pairs of a head's dimensions by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/model_parts.h"

namespace speedrun {

// Radians per position of each of a head's `pairs` pairs (i, i + pairs). The first n = pairs·fraction turn, by
//   base^(−i/n)          Su et al. 2021, eq. 15, of n pairs
//   base^(−i/(n − 1))    with endpoint: evenly spaced exponents from 0 to −1, both included
// and those behind them do not: their frequency is 0.
//
// windows: what the window of config.yarn has been so far, in keys, so that w − 1 is how far a query sees back. At each change,
// from r to r' = w' − 1, with n_i = r·f_i/2π, the rotations of pair i within r:
//   f_i ← f_i·(s + γ_i·(1 − s))    s = r/r', γ_i = (n_i − alpha)/(beta − alpha), not below 0 nor above 1
// (Peng et al. 2023, section 3.2, applied to the frequencies at hand rather than to the first ones).
std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs,
                                       const std::vector<int64_t>& windows = {});

// What attention's scale is multiplied by: Π (log_scale·ln(r'/r) + 1) over the changes; 1 without YaRN or changes.
double yarn_scale(const RotaryConfig& config, const std::vector<int64_t>& windows);

// What differs from all pairs turning without the end point: ", 32 of 64 pairs, to 1/1024, YaRN 385 -> 897"; else nothing.
std::string described_rotary(const RotaryConfig& config, int64_t pairs,
                             const std::vector<int64_t>& windows = {});

}  // namespace speedrun
