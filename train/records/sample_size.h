// Number of runs needed to detect an effect of a given size.
#pragma once

#include <cstdint>
#include <optional>

namespace speedrun {

struct EffectToShow {
    double effect = 0;    // difference of the means, in standard deviations of one side
    double max_p = 0.01;  // largest p of the one-sided test
    double power = 0.8;   // probability that the test detects the effect
};

// Power of the one-sided two-sample t-test with n runs per side and equal standard deviations:
//   P(T' > t),  t: P(T > t) = max_p,  T ~ t(2n - 2),  T' ~ noncentral t(2n - 2, effect sqrt(n / 2))
// Source: Cohen, Statistical power analysis for the behavioral sciences (1988), chapter 2.
double power_of_t_test(const EffectToShow& requested, int64_t n);

// Returns the smallest n per side, at least 2, with this power; none: more than `most`.
std::optional<int64_t> runs_per_side(const EffectToShow& requested, int64_t most);

}  // namespace speedrun
