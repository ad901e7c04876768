// A track and attempts at it whose runs nobody trained.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tests/data/test_files.h"
#include "tests/train/metrics_text.h"
#include "train/records/attempt.h"
#include "train/records/record_text.h"

namespace speedrun {

// A track, and an attempt's folder of three seeds on both sides that no run has made.
class RecordTest : public testing::Test {
  protected:
    RecordTest() {
        std::filesystem::create_directories(dir_.file("records/toy"));
        dir_.write("records/toy/track.json", R"({"name": "toy", "target_loss": 1.15, "hardware_class": "any",
            "dataset": {"shards": [{"file": "t.bin", "split": "train", "tokens": 100, "sha256": "aa"},
                                   {"file": "v.bin", "split": "val", "tokens": 11, "sha256": "bb"}]},
            "validation": {"tokens": 10},
            "rules": {"min_runs": 3, "max_loss_p": 0.01, "max_time_p": 0.01,
                      "systems_only": {"loss_margin": 0.01, "max_p": 0.05}}})");
        terms_.name = "fast";
        terms_.track = "toy";
        terms_.race = "open";
        terms_.seeds = {1, 2, 3};
        terms_.git_sha = "0123456789abcdef";
        terms_.config = R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "seed": 1})";
        terms_.baseline = {"slow", "",
                           R"({"schedule": {"steps": 12}, "data": {"val_tokens": 0}, "lr": 1, "seed": 1})"};
    }

    void write_run(const AttemptRun& run, const std::string& metrics, const std::string& status = "done") {
        const std::string folder = "work/" + terms_.name + "/" + run.name() + "/";
        std::filesystem::create_directories(dir_.file(folder));
        dir_.write(folder + "metrics.jsonl", metrics);
        dir_.write(folder + "summary.json",
                   nlohmann::ordered_json(
                       {{"status", status}, {"val_loss", 1.0}, {"startup_ms", 5.5}, {"train_ms", 9}})
                       .dump());
        dir_.write(
            folder + "environment.json",
            R"({"host": "h", "cpu": {"model": "C", "cores": 2}, "ranks": [], "build": {"type": "Release"}, "git_sha": "fedcba98", "time_utc": "2026-01-02T03:04:05Z"})");
    }

    // Losses 1.140 + 0.001 seed, and 10 ms per step against 15, both a little different from run to run.
    AttemptFolder::Result make_result() {
        AttemptFolder attempt(dir_.file("work"), terms_);
        for (const AttemptRun& run : runs_of(terms_)) {
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

    static const RuleResult& rule(const Record& record, const std::string& name) {
        for (const RuleResult& r : record.rules) {
            if (r.rule == name) return r;
        }
        throw std::runtime_error(name);
    }

    const TempDir dir_;
    AttemptTerms terms_;
};

}  // namespace speedrun
