#include "train/records/sample_size.h"

#include <boost/math/distributions/non_central_t.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace speedrun {

double power_of_t_test(const EffectToShow& requested, int64_t n) {
    const double df = static_cast<double>(2 * n - 2),
                 shift = requested.effect * std::sqrt(static_cast<double>(n) / 2);
    const double t =
        boost::math::quantile(boost::math::complement(boost::math::students_t(df), requested.max_p));
    return boost::math::cdf(boost::math::complement(boost::math::non_central_t(df, shift), t));
}

std::optional<int64_t> runs_per_side(const EffectToShow& requested, int64_t most) {
    if (!(requested.effect > 0)) return std::nullopt;
    // Beyond this shift the distribution's series is slow, and the power is 1 in all digits.
    constexpr double kCertain = 30;
    int64_t low = 1, high = 2;  // the power is too low at `low`, unless low is 1
    const auto enough = [&](int64_t n) {
        return requested.effect * std::sqrt(static_cast<double>(n) / 2) > kCertain ||
               power_of_t_test(requested, n) >= requested.power;
    };
    while (!enough(high)) {
        if (high >= most) return std::nullopt;
        low = high;
        high = std::min(2 * high, most);
    }
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (enough(middle) ? high : low) = middle;
    }
    return high;
}

}  // namespace speedrun
