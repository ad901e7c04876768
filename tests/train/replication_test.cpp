// Verdicts on runs that replicate a record, their files, and the number of runs needed to detect an effect.
// build: apart
#include "train/records/replication.h"

#include "tests/train/record_fixture.h"
#include "train/records/record_folder.h"
#include "train/records/record_verify.h"
#include "train/records/sample_size.h"

namespace speedrun::replication_test {

class ReplicationTest : public RecordTest {
  protected:
    // A record on disk, and replicating runs with seeds 4 to 6, modified by `change`.
    Replication repeated(const std::function<void(Record&)>& change = {}) {
        Replication r;
        r.attempt = make_result().record;
        r.replicates = r.attempt.folder_name();
        for (RecordRun& run : r.attempt.runs) run.seed += 3;
        if (change) change(r.attempt);
        evaluate(r.attempt, track());
        return r;
    }
    Record record() {
        if (folder_.empty()) folder_ = write(make_result());
        return read_record(folder_);
    }
    std::string problems() {
        std::string text;
        for (const std::string& problem : verify_record(folder_).problems) text += problem + "\n";
        return text;
    }

    std::string folder_;
};

TEST_F(ReplicationTest, JudgesLossesHardwareMachineAndFactor) {
    const Record claimed = record();
    const auto verdict = [&](const std::function<void(Record&)>& change) {
        Replication r = repeated(change);
        judge(r, claimed, track());
        return r.verdict + ": " + r.reasons.back();
    };
    const auto has = [&](const std::string& text, const std::string& part) {
        EXPECT_THAT(text, HasSubstr(part));
    };
    has(verdict({}), "replicated: time: 1.500 times as fast here");
    has(verdict([](Record& r) {
            for (RecordRun& run : r.runs) run.validations.back().loss += 0.1;
        }),
        "not replicated: loss: mean loss 1.242");
    has(verdict([](Record& r) {
            for (RecordRun& run : r.runs)
                if (run.side == kCandidate) run.train_ms *= 1.2;
        }),
        "not replicated: time: 1.250 times as fast here, 1.500 in the record; test that it is less: p = ");
    has(verdict([](Record& r) { r.hardware = R"({"cpu": {"model": "D", "cores": 64}})"; }),
        "other hardware: time: not judged, made on 64 cores");
    has(verdict([](Record& r) {
            for (RecordRun& run : r.runs) run.machine = MachineState{.seconds = 9, .cores = 2, .others = 0.4};
        }),
        "busy machine: time: not judged, 6 of 6 runs are marked, 1 allowed; run 1: other programs took 40%");
    has(verdict([](Record& r) { r.runs[0].status = "diverged"; }), "not replicated: ");
}

TEST_F(ReplicationTest, VerifyReadsItsFileAgain) {
    const Record claimed = record();
    Replication r = repeated();
    judge(r, claimed, track());
    const std::string file = write_replication(folder_ + "/replications", r);
    EXPECT_EQ(problems(), "");
    EXPECT_EQ(count_replications(folder_), (std::map<std::string, int64_t>{{kReplicated, 1}}));
    EXPECT_EQ(read_record(folder_).replications.size(), 1U);
    EXPECT_NE(write_replication(folder_ + "/replications", r), file);
    const std::string whole = read_text_file(file);
    const auto after = [&](const std::string& from, const std::string& to) {
        std::string text = whole;
        text.replace(text.find(from), from.size(), to);
        write_file(file, text);
        return problems();
    };
    EXPECT_THAT(after("\"replicated\"", "\"not replicated\""),
                HasSubstr("verdict: \"not replicated\", computed again"))
        << problems();
    EXPECT_THAT(problems(), HasSubstr("sha256: changed since it was written"));
    EXPECT_THAT(after("\"seed\": 4", "\"seed\": 1"), HasSubstr("seed 1 is one of the record's"));
    EXPECT_THAT(after("\"model_dim\": 16", "\"model_dim\": 8"),
                HasSubstr("attempt.baseline.config.model.model_dim: 8, the record's is 16"));
    EXPECT_THAT(after("\"schema\": 1", "\"schema\": 7"), HasSubstr("schema 7, this build knows 1"));
    write_file(file, "{");
    EXPECT_THAT(problems(), HasSubstr("replications/"));
}

// R 4: power.t.test(delta, sd = 1, sig.level, power, type = "two.sample", alternative = "one.sided"), rounded up. The
// first example is from R's manual, n = 17.84713. Others are from Cohen (1988), tables 2.4.1.
TEST(SampleSize, IsThatOfPublishedTables) {
    EXPECT_EQ(runs_per_side({.effect = 1, .max_p = 0.05, .power = 0.9}, 1000), 18);
    EXPECT_EQ(runs_per_side({.effect = 0.5, .max_p = 0.025, .power = 0.8}, 1000), 64);
    EXPECT_EQ(runs_per_side({.effect = 0.8, .max_p = 0.025, .power = 0.8}, 1000), 26);
    EXPECT_EQ(runs_per_side({.effect = 0.2, .max_p = 0.025, .power = 0.8}, 1000), 394);
    EXPECT_EQ(runs_per_side({.effect = 0.001}, 1000), std::nullopt);
    EXPECT_EQ(runs_per_side({.effect = 0}, 1000), std::nullopt);
    EXPECT_EQ(runs_per_side({.effect = 100}, 1000), 2);
    EXPECT_NEAR(power_of_t_test({.effect = 1, .max_p = 0.025}, 22), 0.9,
                0.002);  // manual: n = 22.02110
}

TEST(RatioTest, FindsASmallerFactor) {
    const Moments slow{5, 15, 0.1}, fast{5, 10, 0.1}, slower{5, 12, 0.1};
    EXPECT_NEAR(test_ratio_less({slow, fast}, {slow, fast})->p, 0.5, 1e-12);
    EXPECT_LT(test_ratio_less({slower, fast}, {slow, fast})->p, 1e-6);
    EXPECT_GT(test_ratio_less({slow, fast}, {slower, fast})->p, 0.999);
    EXPECT_FALSE(test_ratio_less({{1, 15, 0}, fast}, {slow, fast}));
}

}  // namespace speedrun::replication_test
