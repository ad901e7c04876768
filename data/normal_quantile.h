// Quantile function of the standard normal distribution.
#pragma once

#include <cmath>

namespace speedrun {

// Returns q with P(X <= q) = p, by bisection; within 1e-9 for 1e-12 < p < 1 - 1e-12.
inline double normal_quantile(double p) {
    double low = -10, high = 10;
    constexpr int kHalvings = 36;
    for (int i = 0; i < kHalvings; ++i) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
    }
    return (low + high) / 2;
}

}  // namespace speedrun
