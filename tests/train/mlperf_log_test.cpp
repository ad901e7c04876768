// MLPerf log of a run, line by line. tests/report/mlperf_test.py runs the official checker on it.
// build: apart
#include "train/records/mlperf_log.h"

#include <cmath>
#include <sstream>

#include "tests/train/record_fixture.h"
#include "train/records/gzip.h"

namespace speedrun::mlperf_log_test {

using Json = nlohmann::json;

class MlperfLogTest : public RecordTest {
  protected:
    MlperfLogTest() : result_(make_result()), record_(result_.record) {
        record_.hardware =
            R"({"ranks": [{"host": "h", "device": "bf16 on 2 threads, avx2"}], "cpu": {"model": "C", "cores": 2}})";
    }

    std::string metrics(const RecordRun& run) const {
        for (const auto& [name, bytes] : result_.files) {
            if (name == run.file) return gunzip(bytes, name);
        }
        throw std::runtime_error(run.file);
    }
    static std::vector<Json> lines_of(const std::string& log) {
        constexpr std::string_view kToken = ":::MLLOG ";
        std::vector<Json> lines;
        std::istringstream stream(log);
        for (std::string line; std::getline(stream, line);) {
            EXPECT_EQ(line.substr(0, kToken.size()), kToken);
            lines.push_back(Json::parse(line.substr(kToken.size())));
        }
        return lines;
    }
    static const Json& line(const std::vector<Json>& lines, const std::string& key) {
        for (const Json& one : lines) {
            if (one.at("key") == key) return one;
        }
        throw std::runtime_error(key);
    }

    const MlperfFacts facts_{.organisation = "us", .validation_tokens = 10, .folder = "toy"};
    AttemptFolder::Result result_;
    Record record_;
};

TEST_F(MlperfLogTest, TimesFollowFromTheRecord) {
    RecordRun run = record_.runs.front();
    run.began_utc = "2026-11-28T12:00:00Z";
    run.startup_ms = 250;
    const std::vector<Json> lines = lines_of(mlperf_log(record_, run, metrics(run), facts_));
    constexpr int64_t kBegan = 1795867200000;
    EXPECT_EQ(line(lines, "init_start").at("time_ms"), kBegan);
    EXPECT_EQ(line(lines, "run_start").at("time_ms"), kBegan + 250);
    EXPECT_EQ(line(lines, "run_stop").at("time_ms"), kBegan + 250 + std::llround(run.train_ms));
    for (size_t i = 1; i < lines.size(); ++i)
        EXPECT_GE(lines[i].at("time_ms").get<int64_t>(), lines[i - 1].at("time_ms").get<int64_t>()) << i;
    std::vector<Json> evaluations;
    for (const Json& one : lines) {
        if (one.at("key") == "eval_accuracy") evaluations.push_back(one);
    }
    ASSERT_EQ(evaluations.size(), run.validations.size());
    for (size_t i = 0; i < evaluations.size(); ++i) {
        const Validation& v = run.validations[i];
        EXPECT_DOUBLE_EQ(evaluations[i].at("value"), std::exp(-v.loss));
        EXPECT_EQ(evaluations[i].at("metadata").at("loss"), v.loss);
        EXPECT_EQ(evaluations[i].at("metadata").at("samples_count"), 64 * v.step);
        EXPECT_EQ(evaluations[i].at("time_ms"), std::llround(static_cast<double>(kBegan) + 250 + v.train_ms));
    }
    EXPECT_EQ(line(lines, "train_samples").at("value"), 100);
    EXPECT_EQ(line(lines, "lowest_numerical_precision_in_linear").at("value"), "bfloat16");
    EXPECT_EQ(line(lines, "submission_org").at("value"), "us");
}

TEST_F(MlperfLogTest, OnlyARunThatReachedTheTargetSucceeded) {
    const RecordRun& run = record_.runs.front();
    const auto status = [&](const RecordRun& r) {
        return line(lines_of(mlperf_log(record_, r, metrics(run), facts_)), "run_stop")
            .at("metadata")
            .at("status");
    };
    EXPECT_EQ(status(run), "success");
    RecordRun missed = run;
    missed.validations.back().loss = record_.target_loss + 0.001;
    EXPECT_EQ(status(missed), "aborted");
    RecordRun diverged = run;  // has step lines after its last loss
    diverged.status = "diverged";
    diverged.validations.resize(1);
    EXPECT_EQ(status(diverged), "aborted");
    const std::vector<Json> lines = lines_of(mlperf_log(record_, diverged, metrics(run), facts_));
    EXPECT_EQ(line(lines, "run_stop").at("metadata").at("samples_count"), 64 * run.steps);
}

TEST_F(MlperfLogTest, RefusesWhatDoesNotFit) {
    RecordRun run = record_.runs.front();
    const std::string text = metrics(run);
    expect_error(ExitCode::data, {"toy: candidate with seed 1", "line 1"},
                 [&] { mlperf_log(record_, run, "{\"event\":\"step\",\"step\":0}\n" + text, facts_); });
    run.validations.back().step += 5;
    expect_error(ExitCode::data, {"no line of step"}, [&] { mlperf_log(record_, run, text, facts_); });
    run.began_utc = "yesterday";
    expect_error(ExitCode::data, {"began_utc is 'yesterday'"},
                 [&] { mlperf_log(record_, run, text, facts_); });
    record_.hardware = R"({"ranks": []})";
    expect_error(ExitCode::data, {"hardware.ranks is empty"},
                 [&] { mlperf_log(record_, record_.runs[1], text, facts_); });
}

}  // namespace speedrun::mlperf_log_test
