// Statistics of runs against SciPy, and results read from metrics.
// Covers: train/runlog/train_clock.cpp
#include "train/records/statistics.h"

#include <algorithm>
#include <cmath>

#include "tests/data/test_files.h"
#include "tests/train/metrics_text.h"
#include "train/records/gzip.h"
#include "train/records/run_metrics.h"

namespace speedrun::statistics_test {

// SciPy 1.17.1: ttest_1samp and ttest_ind(equal_var=False), alternative="less"; numpy.std(ddof=1). Results agree to
// the last digits; 1e-12 allows other Boost versions.
constexpr double kDigits = 1e-12;
const std::vector<double> kLosses = {1.1421, 1.1398, 1.1455, 1.1407, 1.1433};

TEST(StatisticsTest, MomentsAndStudentsTest) {
    const Moments m = moments_of(kLosses);
    EXPECT_NEAR(m.mean, 1.14228, kDigits);
    EXPECT_NEAR(m.std, 0.002240981927637971, kDigits);
    const TestResult test = test_mean_below(kLosses, 1.15).value();
    EXPECT_NEAR(test.t, -7.703071842481631, 1e-9);  // t divides by std, which has errors in its last digits
    EXPECT_NEAR(test.p, 0.0007641550845612755, kDigits);
    EXPECT_EQ(test.df, 4);
    EXPECT_GT(test_mean_below(kLosses, 1.13)->p, 0.99);  // mean above the bound
}

TEST(StatisticsTest, WelchsTest) {
    const std::vector<double> base = {61.20, 60.75, 62.10, 61.05, 60.90, 61.66};
    const TestResult far = test_mean_less({44.31, 44.92, 44.05, 44.70, 44.48}, base).value();
    EXPECT_NEAR(far.t, -65.26909966382287, 1e-9);
    EXPECT_NEAR(far.df, 8.647166336995054, 1e-9);
    EXPECT_NEAR(far.p, 2.985849615199302e-13, 1e-21);
    const TestResult near = test_mean_less({61.0, 60.2, 61.9, 60.4, 61.1}, base).value();
    EXPECT_NEAR(near.t, -0.9788132170171732, kDigits);
    EXPECT_NEAR(near.df, 7.424956658094261, 1e-9);
    EXPECT_NEAR(near.p, 0.17924073806515278, kDigits);
    EXPECT_NEAR(two_sided(near), 2 * 0.17924073806515278, kDigits);
}

TEST(StatisticsTest, EquivalenceOfPairs) {
    std::vector<double> d;
    const std::vector<double> other = {1.1418, 1.1405, 1.1441, 1.1410, 1.1429};
    for (size_t i = 0; i < other.size(); ++i) d.push_back(kLosses[i] - other[i]);
    EXPECT_NEAR(test_equivalent(d, 0.01)->p, 5.275432598084758e-06, kDigits);
    for (double& x : d) x += 0.0095;  // close to the margin
    EXPECT_NEAR(test_equivalent(d, 0.01)->p, 0.23831033363641727, 1e-9);
    for (double& x : d) x = -x;  // mirrored
    EXPECT_NEAR(test_equivalent(d, 0.01)->p, 0.23831033363641727, 1e-9);
}

TEST(StatisticsTest, SamplesThatDoNotVaryAndOnesThatAreTooSmall) {
    EXPECT_EQ(test_mean_below({1, 1, 1}, 2)->p, 0);
    EXPECT_EQ(test_mean_below({3, 3, 3}, 2)->p, 1);
    EXPECT_EQ(test_mean_below({2, 2}, 2)->p, 0.5);
    EXPECT_EQ(test_equivalent({0, 0, 0}, 0.01)->p, 0);  // bitwise equal curves
    EXPECT_EQ(test_mean_less({1, 1}, {2, 2})->p, 0);
    EXPECT_EQ(test_mean_less({1e308, -1e308, 1e308}, {1, 2})->p, 1);  // overflow
    EXPECT_FALSE(test_mean_below({1}, 2));
    EXPECT_FALSE(test_mean_less({1}, {2, 3}));
    EXPECT_TRUE(std::isnan(moments_of({1}).std));
    EXPECT_TRUE(std::isnan(moments_of({}).mean));
}

TEST(RunMetricsTest, ReadsTheResultAndRefusesWhatIsNoRun) {
    const RunMetrics metrics = read_metrics(metrics_of(1.25, 10), "m");
    EXPECT_EQ(metrics.steps, 12);
    EXPECT_EQ(metrics.train_ms, 120);
    EXPECT_TRUE(metrics.validated_at_end);
    ASSERT_EQ(metrics.validations.size(), 2u);
    EXPECT_EQ(metrics.validations[1].loss, 1.25);
    const std::string cut = metrics_of(1.25, 10).substr(0, 700);
    EXPECT_FALSE(read_unfinished_metrics(cut, "m").validated_at_end);
    expect_error(ExitCode::data, {"m: line 14", "parse error"}, [&] { read_metrics(cut, "m"); });
    expect_error(ExitCode::data, {"m: line 2", "train_ms is -5"},
                 [] { read_metrics(step_line(0, 9) + step_line(1, -5), "m"); });
    expect_error(ExitCode::data, {"m: line 2", "step 0 after step 0"},
                 [] { read_metrics(step_line(0, 1) + step_line(0, 2), "m"); });
    const std::string nan = metrics_of(std::nan(""), 10);
    EXPECT_FALSE(read_metrics(nan, "m").validated_at_end) << "a validation that is not a number";
    EXPECT_LT(read_metrics(nan, "m").validations.size(), metrics.validations.size());
    expect_error(ExitCode::data, {"m: line 1", "array"}, [] { read_metrics("[]\n", "m"); });
}

TEST(RunMetricsTest, ThinnedMetricsHaveTheSameResult) {
    const std::string whole = metrics_of(1.25, 10), thin = thin_metrics(whole, 5);
    EXPECT_EQ(thin_metrics(whole, 1), whole);
    // Steps 0, 5, 10 and the last one, plus both validations.
    EXPECT_EQ(std::count(thin.begin(), thin.end(), '\n'), 6);
    const RunMetrics a = read_metrics(whole, "a"), b = read_metrics(thin, "b");
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.train_ms, b.train_ms);
    EXPECT_EQ(a.validations.size(), b.validations.size());
    EXPECT_TRUE(b.validated_at_end);
    EXPECT_EQ(gunzip(gzip(thin), "z"), thin);
    EXPECT_EQ(gunzip(gzip(""), "z"), "");
    expect_error(ExitCode::data, {"z: damaged"}, [&] { gunzip(gzip(thin).substr(0, 60), "z"); });
    expect_error(ExitCode::data, {"z: damaged"}, [&] { gunzip(gzip(thin) + "x", "z"); });
}

}  // namespace speedrun::statistics_test
