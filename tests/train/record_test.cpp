// Records without training: the rules of a track, attempts that are taken up again, and what verify finds in
// a record's folder that somebody changed.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "data/sha256.h"
#include "tests/data/test_files.h"
#include "tests/train/metrics_text.h"
#include "train/record/attempt.h"
#include "train/record/record_text.h"
#include "train/record/record_verify.h"
#include "train/record/run_set.h"
#include "train/record/text_files.h"

namespace speedrun {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// A track, and an attempt's folder of three seeds on both sides that no run has made.
class RecordTest : public testing::Test {
  protected:
    RecordTest() {
        fs::create_directories(dir_.file("records/toy"));
        dir_.write("records/toy/track.json", R"({"name": "toy", "target_loss": 1.15, "hardware_class": "any",
            "dataset": {"shards": [{"file": "t.bin", "split": "train", "tokens": 100, "sha256": "aa"},
                                   {"file": "v.bin", "split": "val", "tokens": 11, "sha256": "bb"}]},
            "validation": {"tokens": 10},
            "rules": {"min_runs": 3, "max_loss_p": 0.01, "max_time_p": 0.01,
                      "systems_only": {"loss_margin": 0.01, "max_p": 0.05}}})");
        plan_.name = "fast";
        plan_.track = "toy";
        plan_.seeds = {1, 2, 3};
        plan_.git_sha = "0123456789abcdef";
        plan_.config = R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "seed": 1})";
        plan_.baseline = {"slow", "",
                          R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "lr": 1, "seed": 1})"};
    }

    void write_run(const AttemptRun& run, const std::string& metrics, const std::string& status = "done") {
        const std::string folder = "work/" + plan_.name + "/" + run.name() + "/";
        fs::create_directories(dir_.file(folder));
        dir_.write(folder + "metrics.jsonl", metrics);
        dir_.write(
            folder + "summary.json",
            Json({{"status", status}, {"val_loss", 1.0}, {"startup_ms", 5.5}, {"train_ms", 9}}).dump());
        dir_.write(
            folder + "environment.json",
            R"({"host": "h", "cpu": {"model": "C", "cores": 2}, "ranks": [], "build": {"type": "Release"}, "time_utc": "2026-01-02T03:04:05Z"})");
    }

    // Losses 1.140 + 0.001 seed, and 10 ms per step against 15, both a little different from run to run.
    AttemptFolder::Result make_result() {
        AttemptFolder attempt(dir_.file("work"), plan_);
        for (const AttemptRun& run : runs_of(plan_)) {
            const double wobble = 0.001 * static_cast<double>(run.seed);
            write_run(run, metrics_of(1.14 + wobble, (run.side == kCandidate ? 10 : 15) + wobble));
        }
        EXPECT_TRUE(attempt.remaining().empty());
        AttemptFolder::Result result = attempt.result();
        result.record.what = "Less work.";
        result.record.target_loss = 1.15;
        result.record.data = {{"t.bin", "train", 100, "aa"}, {"v.bin", "val", 11, "bb"}};
        return result;
    }

    Track track() const { return read_track(dir_.file("records/toy")); }

    std::string write(AttemptFolder::Result result) {
        evaluate(result.record, track());
        return write_record(dir_.file("records"), result);
    }

    const RuleResult& rule(const Record& record, const std::string& name) const {
        for (const RuleResult& r : record.rules) {
            if (r.rule == name) return r;
        }
        throw std::runtime_error(name);
    }

    const TempDir dir_;
    AttemptPlan plan_;
};

TEST_F(RecordTest, RunsAlternateAndSoDoesTheFirstOfARound) {
    std::string order;
    for (const AttemptRun& run : runs_of(plan_))
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
    EXPECT_EQ(record.changes[0].key, "lr");
    EXPECT_EQ(record_to_json(record), read_text_file(folder + "/record.json"));
    const RecordCheck check = verify_record(folder);
    EXPECT_TRUE(check.problems.empty()) << check.problems.front();
    EXPECT_GT(check.num_figures, 100);
    expect_error(ExitCode::usage, {"is there"}, [&] { write(make_result()); });
    const std::string board = leaderboard({record}, TableStyle::text);
    for (const char* part : {"fast", "0.12 ± 0.00", "1.1420 ± 0.0010", "1.500x slow", "2 cores of C", "yes"})
        EXPECT_NE(board.find(part), std::string::npos) << part << "\n" << board;
}

TEST_F(RecordTest, TheBaselinesRunsMakeARecordOfTheirOwn) {
    AttemptFolder::Result result = make_result(), first = record_of_baseline(result, "slow");
    const std::string base = write(first);
    result.record.baseline->record = first.record.folder_name();
    EXPECT_EQ(leading_record(dir_.file("records/toy")), first.record.folder_name());
    const std::string folder = write(result);
    EXPECT_EQ(leading_record(dir_.file("records/toy")), result.record.folder_name());
    for (const std::string& f : {base, folder})
        EXPECT_TRUE(verify_record(f).problems.empty()) << verify_record(f).problems.front();
    const Comparison c = compare_run_sets(base, folder);
    EXPECT_NEAR(c.ratio, 15.002 / 10.002, 1e-9);
    EXPECT_TRUE(c.in_turns && c.same_machine && c.warnings.empty());
    // Of the two records alone nothing says that they were measured in turns.
    plan_.name = "other";
    result = make_result();
    for (RecordRun& run : result.record.runs) run.began_utc = "2027" + run.began_utc.substr(4);
    const Comparison apart = compare_run_sets(base, write(result));
    EXPECT_FALSE(apart.in_turns);
    ASSERT_EQ(apart.warnings.size(), 1u);
    EXPECT_NE(apart.warnings[0].find("not made in turns"), std::string::npos);
    // The baseline's config is not that of the record it names.
    result.record.name = "another";
    result.record.baseline->record = first.record.folder_name();
    result.record.baseline->config =
        R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "lr": 2, "seed": 1})";
    const RecordCheck check = verify_record(write(result));
    ASSERT_EQ(check.problems.size(), 1u);
    EXPECT_NE(check.problems[0].find("baseline.config.lr: 2, in"), std::string::npos) << check.problems[0];
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
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].status = "diverged"; }), "runs loss ");  // too few for the test
    EXPECT_EQ(
        unmet([](Record& r) { std::erase_if(r.runs, [](const RecordRun& run) { return run.seed == 3; }); }),
        "runs loss ");
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].validations.back().loss = 1.3; }), "loss ");
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].validations.back().loss = 1.149; }),
              "loss ");  // the mean is below, not shown
    EXPECT_EQ(unmet([](Record& r) { r.runs[0].train_ms *= 1.5; }), "time ");
    EXPECT_EQ(unmet([](Record& r) { r.record_before = "another"; }), "time ");
    EXPECT_EQ(unmet([](Record& r) {
                  r.record_before = "another";
                  r.baseline.reset();
                  std::erase_if(r.runs, [](const RecordRun& run) { return run.side == kBaseline; });
              }),
              "time ");
}

TEST_F(RecordTest, ASystemsOnlyChangeHasTheBaselinesCurve) {
    const Track t = track();
    const auto loss_rule = [&](auto change) {
        Record record = make_result().record;
        record.systems_only = true;
        // Too near the target for the test that others have to pass.
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
            run.validations.back().loss += 0.02;  // the same on both sides, above the target
    }));
}

void rehash(Json& json) {
    json.erase("sha256");
    const std::string text = json.dump(2);
    Sha256 hash;
    hash.update(text.data(), text.size());
    json["sha256"] = hash.hex();
}

// Something else of the same type.
Json changed(const Json& value) {
    if (value.is_boolean()) return !value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>() + 1;
    if (value.is_number()) return value.get<double>() * (1 + 1e-6);
    if (value.is_null()) return 1;
    std::string text = value.get<std::string>() + "0";
    return text;
}

// Every value of record.json is changed, one at a time. Its hash tells in every case; and even if that is
// made to fit, everything that the runs determine is found.
TEST_F(RecordTest, VerifyFindsEveryChangedFigure) {
    const std::string folder = write(make_result()), path = folder + "/record.json";
    const std::string whole = read_text_file(path);
    std::set<std::string> free;  // what only the hash protects
    const Json flat = Json::parse(whole).flatten();
    for (const auto& [pointer, value] : flat.items()) {
        Json json = Json::parse(whole);
        json[Json::json_pointer(pointer)] = changed(value);
        write_text_file(path, json.dump(2) + "\n");
        EXPECT_FALSE(verify_record(folder).problems.empty()) << pointer;
        rehash(json);  // undoes a change of the hash itself
        write_text_file(path, json.dump(2) + "\n");
        if (!verify_record(folder).problems.empty()) continue;
        free.insert(pointer.starts_with("/runs/") ? pointer.substr(pointer.find('/', 6)) : pointer);
    }
    // Inputs; what the README's table shows of start-up times is rounded.
    const std::set<std::string> expected = {"/what",
                                            "/first",
                                            "/git_sha",
                                            "/binary_sha256",
                                            "/build/type",
                                            "/began_utc",
                                            "/startup_ms",
                                            "/metrics/every",
                                            "/hardware/host",
                                            "/hardware/os",
                                            "/hardware/memory_bytes",
                                            "/hardware/ranks",
                                            "/hardware/gpus",
                                            "/hardware/cpu/model",
                                            "/hardware/cpu/cores",
                                            "/data/0/file",
                                            "/data/0/tokens",
                                            "/data/1/file",
                                            "/data/1/tokens",
                                            "/config/seed",
                                            "/baseline/config/seed",
                                            "/interrupted",
                                            "/sha256"};
    for (const std::string& pointer : free) EXPECT_TRUE(expected.count(pointer)) << pointer;
    std::string same_number = whole;
    const std::string figure = "\"train_ms\": 120.012";
    same_number.insert(same_number.find(figure) + figure.size(), "000");
    for (const std::string& text : {whole + " ", same_number}) {
        write_text_file(path, text);
        EXPECT_FALSE(verify_record(folder).problems.empty());
    }
    write_text_file(path, whole);
    EXPECT_TRUE(verify_record(folder).problems.empty());
}

TEST_F(RecordTest, VerifyNamesBothValues) {
    const std::string folder = write(make_result()), path = folder + "/record.json";
    const auto problem = [&](const std::string& pointer, const Json& value) {
        const std::string whole = read_text_file(path);
        Json json = Json::parse(whole);
        json[Json::json_pointer(pointer)] = value;
        rehash(json);
        write_text_file(path, json.dump(2) + "\n");
        const RecordCheck check = verify_record(folder);
        write_text_file(path, whole);
        return check.problems.empty() ? "nothing" : check.problems.front();
    };
    EXPECT_EQ(problem("/runs/0/train_ms", 119.0),
              "runs.0.train_ms: record.json says 119.0, computed again 120.012");
    EXPECT_EQ(problem("/verdict/is_record", false),
              "verdict.is_record: record.json says false, computed again true");
    EXPECT_NE(problem("/statistics/speedup", 1.6).find("record.json says 1.6, computed again 1.49"),
              std::string::npos);
    EXPECT_NE(problem("/runs/1/seed", 2).find("two runs of the baseline with seed 2"), std::string::npos);
    EXPECT_NE(problem("/runs", 3).find("record.json: "), std::string::npos);
    EXPECT_NE(problem("/config", 3).find("config: expected an object, found 3"), std::string::npos);
}

TEST_F(RecordTest, VerifyFindsChangedMetricsAndFiles) {
    const std::string folder = write(make_result()), file = folder + "/candidate-seed2.jsonl.gz";
    const std::string whole = read_text_file(file);
    const auto problems = [&] {
        std::string text;
        for (const std::string& problem : verify_record(folder).problems) text += problem + "\n";
        return text;
    };
    for (size_t at = 0; at < whole.size(); at += 7) {  // any byte, the header's too
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        write_text_file(file, damaged);
        EXPECT_NE(problems().find("runs.3.metrics.sha256"), std::string::npos) << at;
    }
    std::string text = gunzip(whole, "z");
    text[text.rfind("1.142") + 4] = '3';
    write_text_file(file, gzip(text));
    EXPECT_NE(problems().find("runs.3.loss: record.json says 1.142, computed again 1.143"), std::string::npos)
        << problems();
    EXPECT_NE(problems().find("statistics.candidate.loss.mean"), std::string::npos);
    fs::remove(file);
    EXPECT_NE(problems().find("candidate-seed2.jsonl.gz: cannot open"), std::string::npos);
    write_text_file(file, whole);
    EXPECT_EQ(problems(), "");
    write_text_file(folder + "/more.jsonl.gz", whole);
    EXPECT_NE(problems().find("more.jsonl.gz: metrics of no run"), std::string::npos);
    fs::remove(folder + "/more.jsonl.gz");
    const std::string readme = read_text_file(folder + "/README.md");
    std::string other = readme;
    other[other.find("1.1420") + 3] = '3';
    write_text_file(folder + "/README.md", other);
    EXPECT_NE(problems().find("says 1.1320, computed again 1.1420"), std::string::npos) << problems();
    write_text_file(folder + "/README.md", "A word before.\n" + readme);
    EXPECT_EQ(problems(), "");
    fs::rename(folder, dir_.file("records/toy/2026-01-01_fast"));
    EXPECT_NE(
        verify_record(dir_.file("records/toy/2026-01-01_fast")).problems.front().find("the folder should be"),
        std::string::npos);
}

TEST_F(RecordTest, AnAttemptIsTakenUpAgainWithTheSamePlanAlone) {
    const std::vector<AttemptRun> runs = runs_of(plan_);
    {
        AttemptFolder attempt(dir_.file("work"), plan_);
        EXPECT_EQ(attempt.remaining().size(), 6u);
        write_run(runs[0], metrics_of(1.14, 10));
        write_run(runs[1], metrics_of(1.14, 10).substr(0, 300), "stopped");
        write_run(runs[2], metrics_of(1.14, 10).substr(0, 300), "diverged");
        write_run(runs[3], metrics_of(1.14, 10).substr(0, 700), "done");  // the disk was full
    }
    AttemptFolder attempt(dir_.file("work"), plan_);
    std::vector<std::string> names;
    for (const AttemptRun& run : attempt.remaining()) names.push_back(run.name());
    EXPECT_EQ(names, (std::vector<std::string>{"baseline-seed1", "candidate-seed2", "candidate-seed3",
                                               "baseline-seed3"}));
    EXPECT_TRUE(fs::exists(attempt.path() + "/baseline-seed1.interrupted-1/metrics.jsonl"));
    write_run(runs[2], step_line(0, 1), "diverged");
    for (const size_t i : {1, 3, 4, 5}) write_run(runs[i], metrics_of(1.14, 10));
    const Record record = attempt.result().record;
    ASSERT_EQ(record.interrupted.size(), 2u);
    EXPECT_EQ(record.interrupted[0].side, kBaseline);
    EXPECT_EQ(record.interrupted[1].side, kCandidate);
    EXPECT_EQ(record.interrupted[1].seed, 2);
    EXPECT_GT(record.interrupted[1].steps, record.interrupted[0].steps);
    EXPECT_EQ(record.runs[2].status, "diverged");
    EXPECT_EQ(record.runs[2].steps, 1);

    const auto refused = [&](auto change, const std::string& text) {
        AttemptPlan plan = plan_;
        change(plan);
        expect_error(ExitCode::usage, {text, "another --name"},
                     [&] { AttemptFolder(dir_.file("work"), plan); });
    };
    refused([](AttemptPlan& p) { p.git_sha = "ffff"; },
            "git_sha: \"0123456789abcdef\" when it began, \"ffff\" now");
    refused([](AttemptPlan& p) { p.machine = "m"; }, "machine: \"\" when it began, \"m\" now");
    refused([](AttemptPlan& p) { p.seeds.push_back(4); }, "seeds.3: nothing when it began, 4 now");
    refused(
        [](AttemptPlan& p) {
            p.config = R"({"schedule": {"steps": 13}, "data": {"val_tokens": 0}, "seed": 1})";
        },
        "config.schedule.steps: 12 when it began, 13 now");
    refused([](AttemptPlan& p) { p.baseline.reset(); }, "baseline");
}

TEST_F(RecordTest, TheDataMustBeTheTracks) {
    const std::string train = dir_.write_tokens("t.bin", counting_tokens(100)),
                      val = dir_.write_tokens("v.bin", counting_tokens(11));
    Track t = track();
    t.shards[0].sha256 = sha256_file(train);
    t.shards[1].sha256 = sha256_file(val);
    TrackClaim claim{{train}, {val}, 0, 1.15};
    EXPECT_EQ(expect_data_of_track(t, claim).size(), 2u);
    claim.val_tokens = 10;
    EXPECT_NO_THROW(expect_data_of_track(t, claim));
    claim.val_tokens = 9;
    expect_error(ExitCode::usage, {"data.val_tokens", "9 validation tokens", "10"},
                 [&] { expect_data_of_track(t, claim); });
    claim = {{val}, {val}, 0, 1.15};
    expect_error(ExitCode::data, {val, "no training shard of track toy"},
                 [&] { expect_data_of_track(t, claim); });
    claim = {{train}, {train}, 0, 1.15};
    expect_error(ExitCode::data, {train, "validation shard 0"}, [&] { expect_data_of_track(t, claim); });
    claim = {{train}, {val}, 0, 1.2};
    expect_error(ExitCode::usage, {"target_loss is 1.2", "1.15"}, [&] { expect_data_of_track(t, claim); });
    expect_error(ExitCode::usage, {"no such track", "has toy"},
                 [&] { read_track(dir_.file("records/nowhere")); });
}

}  // namespace
}  // namespace speedrun
