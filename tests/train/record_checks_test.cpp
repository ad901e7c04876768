// Forged runs in records with matching hashes and statistics. verify names each forgery.
// build: apart
#include <cmath>
#include <random>

#include "tests/train/forged_record.h"
#include "train/records/commit_times.h"

namespace speedrun {
namespace {

struct Case {
    const char* name;
    const char* problem;  // part of verify's text
    std::function<void(Forgery&)> forge;
};

void add_loss(MetricsLine& line, double difference) {
    line["loss"] = line.at("loss").get<double>() + difference;
}

// Changes order and seeds together with the file names.
void rename_seed(Forgery& f, const std::string& side, int64_t seed, int64_t other) {
    const std::string before = side + "-seed" + std::to_string(seed),
                      after = side + "-seed" + std::to_string(other);
    f.lines[after] = f.lines.at(before);
    f.run(before).seed = other;
    f.run(before).file = after + ".jsonl.gz";
}

const std::vector<Case> cases = {
    // Times.
    {"LastTimeIsForged",
     "candidate-seed1.jsonl.gz: line 144: train_ms is 120, 4802.421766 in the line before",
     [](Forgery& f) {
         f.each_line(kCandidate, [](MetricsLine& line) {
             if (line["event"] == "val" && line["step"] == 140) line["train_ms"] = 120.0;
         });
     }},
    {"LastTwoTimesAreForged", "train_ms is 119, ",
     [](Forgery& f) {
         auto& lines = first_run(f);
         lines[lines.size() - 2]["train_ms"] = 119.0;
         lines.back()["train_ms"] = 120.0;
     }},
    {"TimeStandsStill", "line 11: train_ms is ",
     [](Forgery& f) { first_run(f)[10]["train_ms"] = first_run(f)[9]["train_ms"]; }},
    {"ClockIsNotTheSumOfSteps", "ms in step 10, step_ms is ",
     [](Forgery& f) { first_run(f)[10]["step_ms"] = 20.0; }},
    {"OnlyTheClockIsScaled", "in step 0, step_ms is ",
     [](Forgery& f) {
         f.each_line(kCandidate,
                     [](MetricsLine& line) { line["train_ms"] = line["train_ms"].get<double>() / 2; });
     }},
    {"ValidationTakesTime", "during a validation",
     [](Forgery& f) {
         bool after = false;
         for (MetricsLine& line : first_run(f)) {
             after = after || line["event"] == "val";
             if (after) line["train_ms"] = line["train_ms"].get<double>() + 3000;
         }
     }},
    {"StepsTakeOneTime", "more than half of the steps have one step_ms, 10",
     [](Forgery& f) {
         double now = 0;
         for (MetricsLine& line : first_run(f)) {
             if (line["event"] == "step") {
                 line["step_ms"] = 10.0;
                 line["optimizer_ms"] = 3.0;
                 line["tokens_per_s"] = 409600.0;
                 now += 10;
             }
             line["train_ms"] = now;
         }
     }},
    {"NegativeStepTime", "step_ms is -1", [](Forgery& f) { first_run(f)[3]["step_ms"] = -1.0; }},
    {"OptimizerIsLongerThanItsStep", "longer than the step",
     [](Forgery& f) { first_run(f)[3]["optimizer_ms"] = 100.0; }},
    {"AllTimesAreHalved", "train_ms: start-up and training take",
     [](Forgery& f) { scale_side(f, kCandidate, 0.5); }},
    {"TimesOfTheBaselineAreDoubled", "s after the run before it, which trained for 22.1",
     [](Forgery& f) { scale_side(f, kBaseline, 2); }},
    {"OneRunOfTheBaselineIsLonger", "s after the run before it, which trained for",
     [](Forgery& f) {
         for (MetricsLine& line : f.lines.at("baseline-seed1")) scale_times(line, 1.8);
     }},
    {"TokensPerSecondOfAnotherTime", "tokens_per_s is ",
     [](Forgery& f) { first_run(f)[3]["tokens_per_s"] = first_run(f)[3]["tokens_per_s"].get<double>() * 2; }},
    // Lines.
    {"StepsAreRemovedExceptTheLast", "line 1 is of step 139, expected step 0",
     [](Forgery& f) {
         for (auto& [name, lines] : f.lines) lines = {lines[lines.size() - 2], lines.back()};
     }},
    {"OneStepIsRemoved", "line 51 is of step 50, expected step 49",
     [](Forgery& f) { first_run(f).erase(first_run(f).begin() + 50); }},
    {"OneStepIsThereTwice", "step 9 after step 9",
     [](Forgery& f) { first_run(f).insert(first_run(f).begin() + 10, first_run(f)[9]); }},
    {"StepsAreOutOfOrder", "step 9 after step 10",
     [](Forgery& f) { std::swap(first_run(f)[9], first_run(f)[10]); }},
    {"AValidationIsRemoved", "line 41 is of step 40, expected the validation after 40 steps",
     [](Forgery& f) { first_run(f).erase(first_run(f).begin() + 40); }},
    {"AValidationIsMade", "line 42 is of the validation after 40 steps, expected step 40",
     [](Forgery& f) { first_run(f).insert(first_run(f).begin() + 40, first_run(f)[40]); }},
    {"EvalEveryOfTheConfigIsAnother", "line 21 is of step 20, expected the validation after 20 steps",
     [](Forgery& f) { f.set("/eval/every", 20); }},
    {"FewerLinesAreKept", "runs.0.metrics.every: 20, an attempt keeps the line of one step in 1 here",
     [](Forgery& f) {
         f.run("candidate-seed1").every = 20;
         std::vector<MetricsLine> kept;
         for (const MetricsLine& line : first_run(f)) {
             const int64_t step = line["step"];
             if (line["event"] == "val" || step % 20 == 0 || step % 40 == 39 || step == 139)
                 kept.push_back(line);
         }
         first_run(f) = kept;
     }},
    {"ALineLacksAFigure", "line 8: ", [](Forgery& f) { first_run(f)[7].erase("lr"); }},
    {"ALossIsNull", "line 8: ", [](Forgery& f) { first_run(f)[7]["loss"] = nullptr; }},
    {"ALossIsNegative", "line 8: loss is -1", [](Forgery& f) { first_run(f)[7]["loss"] = -1.0; }},
    // Config and data.
    {"LearningRateOfTheConfigIsDoubled", "line 1: lr is 0.07, the config's at step 0 is 0.14",
     [](Forgery& f) { f.set("/optimizers/groups/0/lr", 0.14, true, false); }},
    {"ScheduleOfTheConfigIsAnother", "the config's at step",
     [](Forgery& f) { f.set("/schedule/decay", "cosine"); }},
    {"WarmUpOfTheConfigIsAnother", "the config's at step 0",
     [](Forgery& f) { f.set("/schedule/warmup_steps", 5); }},
    {"BatchOfTheConfigIsAnother", "tokens is 4096, the config's after step 0 is 8192",
     [](Forgery& f) { f.set("/batch/tokens_per_step", 8192); }},
    {"TokensOfALine", "tokens is 1, the config's after step 5 is 24576",
     [](Forgery& f) { first_run(f)[5]["tokens"] = 1; }},
    {"StepsOfTheConfig", "line 2: lr is 0.0695, the config's at step 1 is 0.06953333",
     [](Forgery& f) { f.set("/schedule/steps", 150, true, false); }},
    {"FewerTokensAreScored", "config.data.val_tokens: 1000, the track scores 206985",
     [](Forgery& f) { f.set("/data/val_tokens", 1000); }},
    {"FewerTokensOfTheBaselineAreScored", "baseline.config.data.val_tokens: 1000",
     [](Forgery& f) { f.set("/data/val_tokens", 1000, false, true); }},
    {"AnotherTarget", "config.record.target_loss: 1.3, the record's is 1.15",
     [](Forgery& f) { f.set("/record/target_loss", 1.3); }},
    {"AnotherTrack", "config.record.track: 'other', the record is of kjv",
     [](Forgery& f) { f.set("/record/track", "other"); }},
    {"TrainsOnValidation", "config.data.train: no pattern matches data/kjv/train_000000.bin",
     [](Forgery& f) { f.set("/data/train", {"data/kjv/val_*.bin"}); }},
    {"TrainsOnOtherDataToo", "config.data.train: 'data/more/*.bin' matches none",
     [](Forgery& f) {
         f.set("/data/train", {"data/kjv/train_*.bin", "data/more/*.bin"});
     }},
    {"StartsFromWeights", "config.model.init_from: starts from the weights in 'gpt2'",
     [](Forgery& f) { f.set("/model/init_from", "gpt2"); }},
    {"AKeyThatNoBuildReads", "unknown", [](Forgery& f) { f.set("/schedule/unknown_key", 1); }},
    {"AShardOfAnotherSize", "data.0.tokens: 5", [](Forgery& f) { f.record.data[0].tokens = 5; }},
    {"AShardTwice", "are one shard",
     [](Forgery& f) { f.record.data.insert(f.record.data.begin(), f.record.data.front()); }},
    // Losses.
    {"LastLossesAreForged",
     "all runs of the candidate: validation loss 1.0999, the losses of the steps before it, ",
     [](Forgery& f) {
         for (auto& [name, lines] : f.lines)
             add_loss(lines.back(), name.starts_with(kCandidate) ? -0.042 : 0);
     }},
    {"OneLastLossIsForged",
     "candidate-seed1.jsonl.gz: validation loss 1.0428, the losses of the steps before it, ",
     [](Forgery& f) { add_loss(first_run(f).back(), -0.1); }},
    // Copies.
    {"OneRunIsCopiedOverAll",
     "candidate-seed2.jsonl.gz, candidate-seed1.jsonl.gz: more than half of the steps repeat",
     [](Forgery& f) {
         for (auto& [name, lines] : f.lines)
             if (name.starts_with(kCandidate)) lines = first_run(f);
     }},
    {"ACopyWithOtherTimes", "candidate-seed1.jsonl.gz: more than half of the steps repeat the other's losses",
     [](Forgery& f) {
         auto& copy = f.lines.at("candidate-seed2");
         for (size_t i = 0; i < copy.size(); ++i) copy[i]["loss"] = first_run(f)[i]["loss"];
     }},
    {"ACopyWithOtherLosses",
     "candidate-seed1.jsonl.gz: more than half of the steps repeat the other's step_ms",
     [](Forgery& f) {
         std::vector<MetricsLine>& copy = f.lines.at("candidate-seed2");
         const auto losses = copy;
         copy = first_run(f);
         for (size_t i = 0; i < copy.size(); ++i) copy[i]["loss"] = losses[i]["loss"];
     }},
    {"AScaledCopy", "more than half of the steps repeat",
     [](Forgery& f) {
         f.lines.at("candidate-seed2") = first_run(f);
         for (MetricsLine& line : f.lines.at("candidate-seed2")) {
             scale_times(line, 0.97);
             add_loss(line, 0.001);
         }
     }},
    {"RunsOfTheBaselineAreScaled", "more than half of the steps repeat the other's step_ms",
     [](Forgery& f) {
         auto& copy = f.lines.at("candidate-seed1");
         const auto& baseline = f.lines.at("baseline-seed1");
         double now = 0;
         for (size_t i = 0, j = 0; i < copy.size(); ++i) {
             if (copy[i]["event"] == "step") {
                 while (j < baseline.size() && baseline[j]["event"] != "step") ++j;
                 const double ms = j < baseline.size() ? baseline[j++]["step_ms"].get<double>() * 0.4 : 31.25;
                 copy[i]["step_ms"] = ms;
                 copy[i]["optimizer_ms"] = ms / 3;
                 copy[i]["tokens_per_s"] = 4096 / (ms * 1e-3);
                 now += ms;
             }
             copy[i]["train_ms"] = now;
         }
     }},
    {"ACopyWithNoise", "two seeds, but their losses vary together",
     [](Forgery& f) {
         auto& copy = f.lines.at("candidate-seed2");
         std::mt19937 random(1);
         std::normal_distribution<double> noise(0, 0.005);
         for (size_t i = 0; i < copy.size(); ++i)
             copy[i]["loss"] = first_run(f)[i]["loss"].get<double>() + noise(random);
     }},
    {"RunsOfACandidateAreSwapped", "one seed and the same batches, but their losses do not vary together",
     [](Forgery& f) { std::swap(first_run(f), f.lines.at("candidate-seed2")); }},
    {"LossesAreMade", "one seed and the same batches, but their losses do not vary together",
     [](Forgery& f) {
         std::mt19937 random(1);
         std::normal_distribution<double> noise(0, 0.04);
         for (MetricsLine& line : first_run(f)) {
             if (line["event"] == "step")
                 line["loss"] = 1.13 + 4 * std::exp(-line["step"].get<double>() / 20) + noise(random);
         }
     }},
    {"TwoRunsEndWithOneLoss", "both have the validation loss",
     [](Forgery& f) { first_run(f).back()["loss"] = f.lines.at("candidate-seed2").back()["loss"]; }},
    {"RunsOfAnotherRecord", "to the digit as candidate-seed1.jsonl.gz of ",
     [](Forgery& f) {
         const ForgedRecord predecessor("2026-11-26_two_layers");
         for (int64_t seed = 1; seed <= 5; ++seed) {
             const std::string end = "-seed" + std::to_string(seed);
             f.lines[kBaseline + end] = predecessor.honest().lines.at(kCandidate + end);
         }
     }},
    // Seeds and order.
    {"ASeedOfAnotherFile", "runs.0.seed: 7, its metrics are candidate-seed1.jsonl.gz",
     [](Forgery& f) { f.run("candidate-seed1").seed = 7; }},
    {"OtherSeeds", "seed 11, but its first steps are those of seed 1",
     [](Forgery& f) {
         for (int64_t seed = 1; seed <= 5; ++seed) {
             rename_seed(f, kCandidate, seed, seed + 10);
             rename_seed(f, kBaseline, seed, seed + 10);
         }
     }},
    {"SeedsOfOneSide", "runs.1.seed: 1, that of the other side's run in this round is 11",
     [](Forgery& f) { rename_seed(f, kCandidate, 1, 11); }},
    {"ASideRunsFirst", "runs.1: baseline with order 2; alternating sides have",
     [](Forgery& f) {
         int64_t order = 0;
         for (RecordRun& run : f.record.runs) run.order = 2 * order++;
     }},
    {"OneOrderTwice", "runs.3.order: 2 after 2", [](Forgery& f) { f.record.runs[3].order = 2; }},
    {"RunsAreLeftOut", "alternating sides have",
     [](Forgery& f) { f.record.runs.erase(f.record.runs.begin() + 3); }},
    // When, and by which program.
    {"BeganIn1999", "runs.0.began_utc: 1999-11-26T19:31:53Z, the attempt began on 2026-11-26",
     [](Forgery& f) {
         for (RecordRun& run : f.record.runs) run.began_utc.replace(0, 4, "1999");
     }},
    {"BeginsInTheFuture", "is in the future",
     [](Forgery& f) {
         for (RecordRun& run : f.record.runs) run.began_utc.replace(0, 4, "2999");
     }},
    {"NotATime", "'yesterday', expected YYYY-MM-DDTHH:MM:SSZ",
     [](Forgery& f) { f.record.runs[4].began_utc = "yesterday"; }},
    {"AllBeganAtOneTime",
     "runs.1.began_utc: 2026-11-26T19:31:53Z, 0 s after the run before it, which trained for 4.8",
     [](Forgery& f) {
         for (RecordRun& run : f.record.runs) run.began_utc = "2026-11-26T19:31:53Z";
     }},
    {"BeganBeforeTheRunBefore", "s after the run before it",
     [](Forgery& f) { std::swap(f.record.runs[3].began_utc, f.record.runs[6].began_utc); }},
    {"BeforeItsPredecessor", "baseline.record: 2026-11-26_two_layers was begun at",
     [](Forgery& f) {
         for (RecordRun& run : f.record.runs) run.began_utc.replace(11, 2, "09");
     }},
    {"NegativeStartUp", "runs.0.startup_ms: -1", [](Forgery& f) { f.record.runs[0].startup_ms = -1; }},
    {"HashOfZeros", "binary_sha256: '0000",
     [](Forgery& f) { f.record.binary_sha256 = std::string(64, '0'); }},
    {"NoHash", "binary_sha256: 'abc'", [](Forgery& f) { f.record.binary_sha256 = "abc"; }},
    {"NoCommit", "git_sha: 'main' is no commit's name", [](Forgery& f) { f.record.git_sha = "main"; }},
    {"CommitOfZeros", "git_sha: '0000", [](Forgery& f) { f.record.git_sha = std::string(40, '0'); }},
    {"MoreThreadsThanCores", "hardware.ranks: 'bf16 on 8 threads, amx_bf16', config.threads is 0 on 2 cores",
     [](Forgery& f) { f.set_hardware("/ranks/0/device", "bf16 on 8 threads, amx_bf16"); }},
    {"AKeyOfTheBaselineIsLeftOut", "baseline.config.model.init_scale: ",
     [](Forgery& f) {
         MetricsLine config = MetricsLine::parse(f.record.baseline->config);
         config["model"].erase("init_scale");
         f.record.baseline->config = config.dump();
     }},
    {"AKeyOfTheBaselineIsAdded", "baseline.config.cuda.dependent_launch: true, in",
     [](Forgery& f) { f.set("/cuda/dependent_launch", true, false, true); }},
    {"AnotherLevel", "hardware.cpu.isa: avx9, not one of the processor's",
     [](Forgery& f) { f.set_hardware("/cpu/isa", "avx9"); }},
    {"ALevelThatRanksDidNotUse", "hardware.cpu.isa: avx2, a rank ran 'bf16 on 2 threads, amx_bf16'",
     [](Forgery& f) { f.set_hardware("/cpu/isa", "avx2"); }},
};

class ForgedRecordTest : public ::testing::TestWithParam<Case> {};

TEST_P(ForgedRecordTest, IsFound) {
    static const ForgedRecord narrow("2026-11-26_narrow");
    const std::string problems = narrow.problems_after(GetParam().forge);
    EXPECT_THAT(problems, HasSubstr(GetParam().problem));
}

INSTANTIATE_TEST_SUITE_P(Forgeries, ForgedRecordTest, ::testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RecordChecksTest, HonestRecordsHaveNoProblem) {
    for (const auto& entry : std::filesystem::directory_iterator(SPEEDRUN_SOURCE_ROOT "/records/kjv")) {
        if (!std::filesystem::exists(entry.path() / "record.json")) continue;
        const ForgedRecord record(entry.path().filename().string());
        for (const std::string& problem : verify_record(record.folder()).problems) ADD_FAILURE() << problem;
        EXPECT_EQ(record.problems_after([](Forgery&) {}), "") << entry.path();
    }
}

// Metrics with one line per 7 steps.
TEST(RecordChecksTest, FindsForgeriesOfThinnedMetrics) {
    const ForgedRecord muon("2026-11-21_muon");
    const auto problems = [&](double factor) {
        return muon.problems_after([&](Forgery& f) {
            double before = 0, now = 0;
            for (MetricsLine& line : f.lines.at("baseline-seed1")) {
                const double passed = line["train_ms"].get<double>() - before;
                before += passed;
                // Shortens only steps without their own line.
                const bool skips = line["event"] == "step" && passed > 4 * line["step_ms"].get<double>();
                now += skips ? passed * factor : passed;
                line["train_ms"] = now;
            }
        });
    };
    EXPECT_THAT(problems(0.3), HasSubstr("by train_ms, "));
    EXPECT_THAT(problems(0.001), HasSubstr("train_ms grows by"));
}

TEST(RecordChecksTest, ACommitIsOneOfTheRepository) {
    if (!has_history(SPEEDRUN_SOURCE_ROOT, "records/kjv/track.json"))
        GTEST_SKIP() << "no history of this repository";
    const ForgedRecord narrow("2026-11-26_narrow");
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(SPEEDRUN_SOURCE_ROOT);
    const std::string unknown = narrow.problems_after(
        [](Forgery& f) { f.record.git_sha = "0123456789abcdef0123456789abcdef01234567"; });
    const std::string earlier = narrow.problems_after([](Forgery& f) {  // the commit is from 17:22
        for (RecordRun& run : f.record.runs) run.began_utc.replace(11, 2, "16");
    });
    std::filesystem::current_path(before);
    EXPECT_THAT(
        unknown,
        HasSubstr("git_sha: 0123456789abcdef0123456789abcdef01234567 is no commit of this repository"));
    EXPECT_THAT(earlier, HasSubstr("s after the first run began, 2026-11-26T16:31:53Z"));
}

}  // namespace
}  // namespace speedrun
