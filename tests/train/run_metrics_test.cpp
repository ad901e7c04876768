// Metrics of a run after a full disk or a killed process: damaged lines are skipped and counted.
#include "train/records/run_metrics.h"

#include "tests/data/test_files.h"
#include "tests/train/metrics_text.h"

namespace speedrun::run_metrics_test {

const std::string kFused = R"({"event":"step","step":1,{"event":"step","step":2,"loss":2.0,"train_ms":3})";

TEST(RunMetricsTest, DamagedLinesAreLeftOut) {
    using std::string_literals::operator""s;
    for (const std::string& damage :
         {kFused, "garbage"s, ""s, "\0\0\0"s, "\xff"s, "[]"s, "{}"s, "null"s, std::string(1'000'000, '['),
          R"({"event":"step","step":1e999})"s, R"({"event":"val","step":"a","train_ms":1})"s,
          R"({"event":"step","step":1,"train_ms":-1})"s, R"({"event":"other","step":1,"train_ms":1})"s}) {
        const std::string text = step_line(0, 1) + damage + "\n" + damage + "\n" + val_line(2, 1.5, 3) +
                                 step_line(2, 4) + val_line(3, 1.25, 5);
        const RunMetrics metrics = read_unfinished_metrics(text, "m");
        EXPECT_EQ(metrics.damaged.count, 2) << damage.substr(0, 80);
        EXPECT_EQ(metrics.damaged.first, 2);
        EXPECT_EQ(metrics.steps, 3);
        EXPECT_EQ(metrics.validations.size(), 2u);
        EXPECT_TRUE(metrics.validated_at_end);
        expect_error(ExitCode::data, {"m: line 2: "}, [&] { read_metrics(text, "m"); });
    }
    EXPECT_EQ(DamagedLines({.count = 1, .first = 7}).text(), "line 7 is damaged and left out");
    EXPECT_EQ(DamagedLines({.count = 3, .first = 7}).text(), "3 damaged lines left out, the first is line 7");
}

TEST(RunMetricsTest, AnUnfinishedLastLineIsNoDamage) {
    const RunMetrics metrics = read_unfinished_metrics(step_line(0, 1) + kFused, "m");
    EXPECT_FALSE(metrics.damaged.any());
    EXPECT_EQ(metrics.steps, 1);
    EXPECT_FALSE(read_unfinished_metrics("", "m").damaged.any());
}

// Lines dropped by the writer leave a gap. Steps that decrease mean two runs in one file, which is an error.
TEST(RunMetricsTest, StepsMayBeMissingAndNotGoBackwards) {
    const RunMetrics metrics = read_unfinished_metrics(step_line(0, 1) + val_line(5, 1.5, 9), "m");
    EXPECT_EQ(metrics.steps, 5);
    EXPECT_TRUE(metrics.validated_at_end);
    expect_error(ExitCode::data, {"m: line 1: validation at step 5 after 0 steps"},
                 [] { read_metrics(val_line(5, 1.5, 9), "m"); });
    expect_error(ExitCode::data, {"m: line 3: step 0 after step 1"},
                 [] { read_unfinished_metrics(step_line(0, 1) + step_line(1, 2) + step_line(0, 3), "m"); });
}

}  // namespace speedrun::run_metrics_test
