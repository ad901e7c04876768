#include "train/records/statistics.h"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>

namespace speedrun {

namespace {

// Returns P(T <= t). Without variance the mean alone decides (infinite t); after an overflow (NaN) returns 1.
double lower_tail(double t, double df) {
    if (std::isnan(t) || !(df > 0)) return 1;
    if (std::isinf(t)) return t < 0 ? 0 : 1;
    return boost::math::cdf(boost::math::students_t(df), t);
}

double t_of(double difference, double standard_error) {
    if (standard_error > 0) return difference / standard_error;
    if (difference == 0) return 0;
    return std::copysign(std::numeric_limits<double>::infinity(), difference);
}

}  // namespace

Moments moments_of(const std::vector<double>& sample) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    Moments result{static_cast<int64_t>(sample.size()), kNone, kNone};
    if (sample.empty()) return result;
    const auto n = static_cast<double>(sample.size());
    double sum = 0, squares = 0;
    for (const double x : sample) sum += x;
    result.mean = sum / n;
    for (const double x : sample) squares += (x - result.mean) * (x - result.mean);
    if (sample.size() > 1) result.std = std::sqrt(squares / (n - 1));
    return result;
}

std::optional<TestResult> test_mean_below(const std::vector<double>& sample, double limit) {
    if (sample.size() < 2) return std::nullopt;
    const Moments m = moments_of(sample);
    const auto n = static_cast<double>(m.count);
    TestResult result;
    result.df = n - 1;
    result.t = t_of(m.mean - limit, m.std / std::sqrt(n));
    result.p = lower_tail(result.t, result.df);
    return result;
}

std::optional<TestResult> test_mean_less(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() < 2 || b.size() < 2) return std::nullopt;
    const Moments ma = moments_of(a), mb = moments_of(b);
    const auto na = static_cast<double>(ma.count), nb = static_cast<double>(mb.count);
    const double u = ma.std * ma.std / na, v = mb.std * mb.std / nb;
    TestResult result;
    result.df = u + v > 0 ? (u + v) * (u + v) / (u * u / (na - 1) + v * v / (nb - 1)) : na + nb - 2;
    result.t = t_of(ma.mean - mb.mean, std::sqrt(u + v));
    result.p = lower_tail(result.t, result.df);
    return result;
}

std::optional<TestResult> test_ratio_less(const TimesOfSides& here, const TimesOfSides& there) {
    double sum = 0, squares = 0;
    for (const Moments* m : {&here.baseline, &here.candidate, &there.baseline, &there.candidate}) {
        if (m->count < 2 || !(m->mean > 0)) return std::nullopt;
        const auto n = static_cast<double>(m->count);
        const double v = (m->std / m->mean) * (m->std / m->mean) / n;
        sum += v;
        squares += v * v / (n - 1);
    }
    const auto log_ratio = [](const TimesOfSides& s) { return std::log(s.baseline.mean / s.candidate.mean); };
    TestResult result;
    result.df = sum > 0 ? sum * sum / squares : 1;
    result.t = t_of(log_ratio(here) - log_ratio(there), std::sqrt(sum));
    result.p = lower_tail(result.t, result.df);
    return result;
}

double two_sided(const TestResult& test) {
    return 2 * lower_tail(-std::abs(test.t), test.df);
}

std::optional<TestResult> test_equivalent(const std::vector<double>& differences, double margin) {
    std::vector<double> negated;
    for (const double d : differences) negated.push_back(-d);
    const auto not_above = test_mean_below(differences, margin), not_below = test_mean_below(negated, margin);
    if (!not_above) return std::nullopt;
    return not_above->p > not_below->p ? not_above : not_below;
}

}  // namespace speedrun
