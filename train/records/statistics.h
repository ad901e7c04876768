// Statistics of a record from a small number of runs. Runs with distinct seeds are treated as independent samples of a normal
// distribution.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace speedrun {

struct Moments {
    int64_t count = 0;
    double mean = 0;  // sum x / n; NaN if n = 0
    double std = 0;   // sample standard deviation, sqrt(sum (x - mean)^2 / (n - 1)); NaN if n < 2
};
Moments moments_of(const std::vector<double>& sample);

struct TestResult {
    double t = 0;   // test statistic; infinite if the sample has no variance
    double df = 0;  // degrees of freedom of the t distribution
    double p = 0;   // small: supports the alternative
};

// Student's one-sample test, one-sided. Alternative: the population mean is below `limit`.
//   t = (mean - limit) / (s / sqrt n),  df = n - 1,  p = P(T <= t)
// None if n < 2. Source: Student, The probable error of a mean, Biometrika 6 (1908).
std::optional<TestResult> test_mean_below(const std::vector<double>& sample, double limit);

// Welch's test, one-sided. Alternative: the population mean of a is below that of b; variances may differ.
//   t = (mean_a - mean_b) / sqrt(u + v);  u = s_a^2 / n_a;  v = s_b^2 / n_b;
//   df = (u + v)^2 / (u^2 / (n_a - 1) + v^2 / (n_b - 1)),  p = P(T <= t)
// None if either sample has fewer than two values. Source: Welch, The generalization of Student's problem, Biometrika 34
// (1947); df after Satterthwaite (1946).
std::optional<TestResult> test_mean_less(const std::vector<double>& a, const std::vector<double>& b);

// Moments of the times of both sides of an attempt.
struct TimesOfSides {
    Moments baseline, candidate;
};
// Test that the ratio of means baseline / candidate of `here` is below that of `there`, one-sided, on logarithms:
//   t = (log ratio here - log ratio there) / sqrt(sum v);  v = (s / mean)^2 / n of each of the four samples;
//   df = (sum v)^2 / sum(v^2 / (n - 1)),  p = P(T <= t)
// Uses the delta method for the variance of a mean's logarithm; df after Satterthwaite. None if a sample has fewer than two
// values.
std::optional<TestResult> test_ratio_less(const TimesOfSides& here, const TimesOfSides& there);

// Returns the two-sided p.
double two_sided(const TestResult& test);

// Two one-sided tests on paired differences. Alternative: the mean difference is in (-margin, margin).
//   p = max(P(T >= (mean + margin) / (s / sqrt n)), P(T <= (mean - margin) / (s / sqrt n))),  df = n - 1.
// t is the statistic of the larger p, negative if it supports the alternative. None if n < 2. Source: Schuirmann, J.
// Pharmacokinetics and Biopharmaceutics 15 (1987).
std::optional<TestResult> test_equivalent(const std::vector<double>& differences, double margin);

}  // namespace speedrun
