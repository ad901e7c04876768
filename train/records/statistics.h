// The statistics of a record: what a handful of runs say about the recipe behind them. Runs with distinct
// seeds are taken as independent draws from a normal distribution.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace speedrun {

struct Moments {
    int64_t count = 0;
    double mean = 0;  // sum x / n; NaN if n = 0
    double std = 0;   // of the sample: sqrt(sum (x - mean)^2 / (n - 1)); NaN if n < 2
};
Moments moments_of(const std::vector<double>& sample);

struct TestResult {
    double t = 0;   // the statistic; infinite if the sample does not vary
    double df = 0;  // degrees of freedom of the t distribution that p is of
    double p = 0;   // small: the alternative is shown
};

// Student's one-sample test, one-sided. Alternative: the mean behind the sample is below `limit`.
//   t = (mean - limit) / (s / sqrt n),  df = n - 1,  p = P(T <= t)
// None if n < 2. Source: Student, The probable error of a mean, Biometrika 6 (1908).
std::optional<TestResult> test_mean_below(const std::vector<double>& sample, double limit);

// Welch's test, one-sided. Alternative: the mean behind a is below that behind b; the variances may differ.
//   t = (mean_a - mean_b) / sqrt(u + v),  u = s_a^2 / n_a,  v = s_b^2 / n_b
//   df = (u + v)^2 / (u^2 / (n_a - 1) + v^2 / (n_b - 1)),  p = P(T <= t)
// None if either has fewer than two. Source: Welch, The generalization of Student's problem, Biometrika 34
// (1947); df after Satterthwaite (1946).
std::optional<TestResult> test_mean_less(const std::vector<double>& a, const std::vector<double>& b);

// Moments of both sides' times in one attempt.
struct TimesOfSides {
    Moments baseline, candidate;
};
// Test that the ratio of means baseline / candidate of `here` is below that of `there`, one-sided, on logarithms:
//   t = (log ratio here - log ratio there) / sqrt(sum v),  v = (s / mean)^2 / n of each of the four samples
//   df = (sum v)^2 / sum(v^2 / (n - 1)),  p = P(T <= t)
// The delta method for the variance of a mean's logarithm; df after Satterthwaite. None if a sample has fewer than two.
std::optional<TestResult> test_ratio_less(const TimesOfSides& here, const TimesOfSides& there);

// p of |t|: the test without a direction.
double two_sided(const TestResult& test);

// Two one-sided tests on differences of pairs. Alternative: the mean difference lies within (-margin,
// margin).
//   p = max(P(T >= (mean + margin) / (s / sqrt n)), P(T <= (mean - margin) / (s / sqrt n))),  df = n - 1
// t is the one of the larger p, negative where it speaks for the alternative. None if n < 2. Source:
// Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987).
std::optional<TestResult> test_equivalent(const std::vector<double>& differences, double margin);

}  // namespace speedrun
