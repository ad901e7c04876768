// Records without training: the rules of a track, and resumed attempts.
// build: apart
// Covers: train/records/*.cpp
#include <optional>

#include "data/sha256.h"
#include "tests/train/record_fixture.h"
#include "train/records/leaderboard.h"
#include "train/records/record_verify.h"
#include "train/records/run_set.h"

namespace speedrun {
namespace {

namespace fs = std::filesystem;

TEST_F(RecordTest, RunsAlternateAndSoDoesTheFirstOfARound) {
    std::string order;
    for (const AttemptRun& run : runs_of(terms_))
        order += run.side.substr(0, 1) + std::to_string(run.seed) + " ";
    EXPECT_EQ(order, "c1 b1 b2 c2 c3 b3 ");
}

TEST_F(RecordTest, WhatIsWrittenIsReadAgainAndVerified) {
    const std::string folder = write(make_result());
    const Record record = read_record(folder);
    EXPECT_TRUE(record.is_record) << figures_markdown(record);
    EXPECT_NEAR(*record.statistics.speedup, 15.002 / 10.002, 1e-9);
    EXPECT_NEAR(record.statistics.candidate.loss.mean, 1.142, 1e-9);
    ASSERT_EQ(record.changes.size(), 1u);
    EXPECT_EQ(record.changes[0].key, "optimizers.groups.0.lr");
    EXPECT_EQ(record_to_json(record), read_text_file(folder + "/record.json"));
    const RecordCheck check = verify_record(folder);
    EXPECT_TRUE(check.problems.empty()) << check.problems.front();
    EXPECT_GT(check.num_figures, 100);
    expect_error(ExitCode::usage, {"is there"}, [&] { write(make_result()); });
    const std::vector<BoardOfRecords> boards = boards_of({record}, track());
    ASSERT_EQ(boards.size(), 1u);
    const std::string board = board_text(boards[0], TableStyle::text);
    for (const char* part : {"fast", "0.12 ± 0.00", "1.1420 ± 0.0010", "1.500x slow", "2 cores of C", "yes"})
        EXPECT_THAT(board, HasSubstr(part)) << part << "\n" << board;
}

TEST_F(RecordTest, TheBaselinesRunsMakeARecordOfTheirOwn) {
    AttemptFolder::Result result = make_result(), first = record_of_baseline(result, "slow");
    const std::string base = write(first);
    result.record.baseline->record = first.record.folder_name();
    const Board board{"open", hardware_class_of(first.record.hardware)};
    EXPECT_EQ(leading_record(dir_.file("records/toy"), board), first.record.folder_name());
    const std::string folder = write(result);
    EXPECT_EQ(leading_record(dir_.file("records/toy"), board), result.record.folder_name());
    for (const std::string& f : {base, folder})
        EXPECT_TRUE(verify_record(f).problems.empty()) << verify_record(f).problems.front();
    const Comparison c = compare_run_sets(base, folder);
    EXPECT_NEAR(c.ratio, 15.002 / 10.002, 1e-9);
    EXPECT_TRUE(c.in_turns && c.same_machine && c.warnings.empty());
    // Records of two attempts were not measured in alternation.
    terms_.name = "other";
    result = make_result();
    for (RecordRun& run : result.record.runs) run.began_utc = "2025" + run.began_utc.substr(4);
    const Comparison apart = compare_run_sets(base, write(result));
    EXPECT_FALSE(apart.in_turns);
    ASSERT_EQ(apart.warnings.size(), 1u);
    EXPECT_THAT(apart.warnings[0], HasSubstr("not made in turns"));
    // The baseline's config differs from the record that it names.
    result.record.name = "another";
    result.record.baseline->record = first.record.folder_name();
    result.record.baseline->config = config(16, 2);
    const RecordCheck check = verify_record(write(result));
    ASSERT_FALSE(check.problems.empty());
    EXPECT_THAT(check.problems[0], HasSubstr("baseline.config.optimizers.groups.0.lr: 2.0, in"));
}

TEST_F(RecordTest, EachRuleCanBeTheOneThatIsNotMet) {
    const Track t = track();
    const auto unmet = [&](auto change) {
        Record record = make_result().record;
        change(record);
        evaluate(record, t);
        std::string names;
        for (const RuleResult& r : record.rules) names += r.met ? "" : r.rule + " ";
        EXPECT_EQ(record.is_record, names.empty());
        return names;
    };
    EXPECT_EQ(unmet([](Record&) {}), "");
    EXPECT_EQ(unmet([](Record& r) { r.dirty = true; }), "build ");
    EXPECT_EQ(unmet([](Record& r) { r.target_loss = 1.2; }), "data ");
    EXPECT_EQ(unmet([](Record& r) { r.data[0].sha256 = "cc"; }), "data ");
    EXPECT_EQ(unmet([](Record& r) { r.data.pop_back(); }), "data ");
    EXPECT_EQ(unmet([](Record& r) { r.config = R"({"data": {"val_tokens": 9}})"; }), "data ");
    EXPECT_EQ(unmet([](Record& r) { r.config = R"({"model": {"init_from": "gpt2"}})"; }), "data ");
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].status = "diverged"; }), "runs loss ");  // too few runs
    EXPECT_EQ(
        unmet([](Record& r) { std::erase_if(r.runs, [](const RecordRun& run) { return run.seed == 3; }); }),
        "runs loss ");
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].validations.back().loss = 1.3; }), "loss ");
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].validations.back().loss = 1.149; }),
              "loss ");  // the mean is below the target, but not significantly
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].train_ms *= 1.5; }), "time ");
    EXPECT_EQ(unmet([](Record& r) { r.record_before = "another"; }), "time ");
    EXPECT_EQ(unmet([](Record& r) {
                  r.record_before = "another";
                  r.baseline.reset();
                  std::erase_if(r.runs, [](const RecordRun& run) { return run.side == kBaseline; });
              }),
              "time ");
    EXPECT_EQ(unmet([](Record& r) { r.race = "another"; }), "class ");
    EXPECT_EQ(unmet([](Record& r) { r.race.clear(); }), "");  // records older than classes have no class
}

TEST_F(RecordTest, ASystemsOnlyChangeHasTheBaselinesCurve) {
    const Track t = track();
    const auto loss_rule = [&](auto change) {
        Record record = make_result().record;
        record.systems_only = true;
        // Too close to the target for the usual significance test.
        for (RecordRun& run : record.runs) run.validations.back().loss = run.seed == 1 ? 1.149 : 1.14;
        change(record);
        evaluate(record, t);
        return rule(record, "loss").met;
    };
    EXPECT_TRUE(loss_rule([](Record&) {}));
    EXPECT_FALSE(loss_rule([](Record& r) { r.systems_only = false; }));
    EXPECT_FALSE(
        loss_rule([](Record& r) { r.runs[0].validations[0].loss += 0.05; }));  // another curve, same end
    EXPECT_FALSE(loss_rule([](Record& r) { r.runs[0].validations.erase(r.runs[0].validations.begin()); }));
    EXPECT_FALSE(loss_rule([](Record& r) {
        for (RecordRun& run : r.runs)
            run.validations.back().loss += 0.02;  // equal on both sides, above the target
    }));
}

TEST_F(RecordTest, TwoBuildsAreRacedWithOneConfig) {
    terms_.systems_only = true;
    terms_.baseline->config = terms_.config;
    terms_.baseline_binary_sha256 = std::string(32, 'b') + "0123456789abcdef0123456789abcdef";
    AttemptFolder(dir_.file("work"), terms_);
    for (const AttemptRun& run : runs_of(terms_)) {  // resolved config as written by each build
        fs::create_directories(dir_.file("work/fast/" + run.name()));
        dir_.write("work/fast/" + run.name() + "/config.json",
                   R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "known_to_one": 1, "seed": 3})");
    }
    const AttemptFolder::Result result = make_result();
    ASSERT_TRUE(result.record.baseline->program);
    EXPECT_EQ(result.record.baseline->program->git_sha, "fedcba98fedcba98fedcba98fedcba98fedcba98");
    const std::string folder = write(result);
    const Record record = read_record(folder);
    EXPECT_TRUE(record.is_record) << figures_markdown(record);
    EXPECT_EQ(rule(record, "build").why,
              "built from commit 0123456789ab, the baseline built from commit fedcba98fedc");
    EXPECT_TRUE(verify_record(folder).problems.empty()) << verify_record(folder).problems.front();
    const auto met = [&](auto change) {
        Record other = result.record;
        change(other);
        evaluate(other, track());
        return rule(other, "build").met;
    };
    EXPECT_TRUE(met([](Record&) {}));
    EXPECT_FALSE(met([](Record& r) { r.baseline->program->dirty = true; }));
    EXPECT_FALSE(met([](Record& r) { r.baseline->program->git_sha = "unknown"; }));
    EXPECT_FALSE(met([](Record& r) { r.baseline->program->git_sha = r.git_sha; }));
    EXPECT_FALSE(met([](Record& r) { r.systems_only = false; }));
    EXPECT_FALSE(met([](Record& r) { r.baseline->config = R"({"schedule": {"steps": 13}, "seed": 1})"; }));
    dir_.write("work/fast/baseline-seed2/config.json", R"({"schedule": {"steps": 13}, "seed": 2})");
    expect_error(ExitCode::data, {"baseline-seed2/config.json: schedule.steps is 13, the attempt's is 12"},
                 [&] { make_result(); });
}

TEST_F(RecordTest, AnAttemptIsTakenUpAgainWithTheSamePlanAlone) {
    const std::vector<AttemptRun> runs = runs_of(terms_);
    {
        AttemptFolder attempt(dir_.file("work"), terms_);
        EXPECT_EQ(attempt.remaining().size(), 6u);
        write_run(runs[0], metrics_of(1.14, 10));
        write_run(runs[1], metrics_of(1.14, 10).substr(0, 300), "stopped");
        write_run(runs[2], metrics_of(1.14, 10).substr(0, 300), "diverged");
        write_run(runs[3], metrics_of(1.14, 10).substr(0, 700), "done");  // truncated by a full disk
    }
    std::optional<AttemptFolder> attempt(std::in_place, dir_.file("work"), terms_);
    std::vector<std::string> names;
    for (const AttemptRun& run : attempt->remaining()) names.push_back(run.name());
    EXPECT_EQ(names, (std::vector<std::string>{"baseline-seed1", "candidate-seed2", "candidate-seed3",
                                               "baseline-seed3"}));
    EXPECT_TRUE(fs::exists(attempt->path() + "/baseline-seed1.interrupted-1/metrics.jsonl"));
    write_run(runs[2], step_line(0, 1), "diverged");
    for (const size_t i : {1, 3, 4, 5}) write_run(runs[i], metrics_of(1.14, 10));
    const Record record = attempt->result().record;
    ASSERT_EQ(record.interrupted.size(), 2u);
    EXPECT_EQ(record.interrupted[0].side, kBaseline);
    EXPECT_EQ(record.interrupted[1].side, kCandidate);
    EXPECT_EQ(record.interrupted[1].seed, 2);
    EXPECT_GT(record.interrupted[1].steps, record.interrupted[0].steps);
    EXPECT_EQ(record.runs[2].status, "diverged");
    EXPECT_EQ(record.runs[2].steps, 1);

    attempt.reset();  // releases its lock
    const auto refused = [&](auto change, const std::string& text) {
        AttemptTerms terms = terms_;
        change(terms);
        expect_error(ExitCode::usage, {text, "another --name"},
                     [&] { AttemptFolder(dir_.file("work"), terms); });
    };
    refused([](AttemptTerms& p) { p.git_sha = "ffff"; },
            "git_sha: \"0123456789abcdef0123456789abcdef01234567\" when it began, \"ffff\" now");
    refused([](AttemptTerms& p) { p.machine = "m"; }, "machine: \"\" when it began, \"m\" now");
    refused([](AttemptTerms& p) { p.seeds.push_back(4); }, "seeds.3: nothing when it began, 4 now");
    refused([](AttemptTerms& p) { p.config.replace(p.config.find("\"steps\":12"), 10, "\"steps\":13"); },
            "config.schedule.steps: 12 when it began, 13 now");
    refused([](AttemptTerms& p) { p.baseline.reset(); }, "baseline");
}

TEST_F(RecordTest, TheDataMustBeTheTracks) {
    const std::string train = write_tokens(dir_.file("t.bin"), counting_tokens(100)),
                      val = write_tokens(dir_.file("v.bin"), counting_tokens(11));
    Track t = track();
    t.shards[0].sha256 = sha256_file(train);
    t.shards[1].sha256 = sha256_file(val);
    TrackClaim claim{{train}, {val}, 0, 1.15};
    EXPECT_EQ(expect_data_of_track(t, t.classes.front(), claim).size(), 2u);
    claim.val_tokens = 10;
    EXPECT_NO_THROW(expect_data_of_track(t, t.classes.front(), claim));
    claim.val_tokens = 9;
    expect_error(ExitCode::usage, {"data.val_tokens", "9 validation tokens", "10"},
                 [&] { expect_data_of_track(t, t.classes.front(), claim); });
    claim = {{val}, {val}, 0, 1.15};
    expect_error(ExitCode::data, {val, "no training shard of track toy"},
                 [&] { expect_data_of_track(t, t.classes.front(), claim); });
    claim = {{train}, {train}, 0, 1.15};
    expect_error(ExitCode::data, {train, "validation shard 0"},
                 [&] { expect_data_of_track(t, t.classes.front(), claim); });
    claim = {{train}, {val}, 0, 1.2};
    expect_error(ExitCode::usage, {"target_loss is 1.2", "1.15"},
                 [&] { expect_data_of_track(t, t.classes.front(), claim); });
    expect_error(ExitCode::usage, {"no such track", "has toy"},
                 [&] { read_track(dir_.file("records/nowhere")); });
}

}  // namespace
}  // namespace speedrun
