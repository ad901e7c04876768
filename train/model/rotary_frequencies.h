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
std::vector<double> rotary_frequencies(const RotaryConfig& config, int64_t pairs);

// What differs from all pairs turning without the end point: ", 32 of 64 pairs, to 1/1024"; else nothing.
std::string described_rotary(const RotaryConfig& config, int64_t pairs);

}  // namespace speedrun
