// A track and attempts with generated metrics, without training.
#pragma once

#include <fmt/chrono.h>

#include <ctime>
#include <stdexcept>

#include "data/durable_file.h"
#include "data/text_file.h"
#include "tests/data/test_files.h"
#include "tests/train/metrics_text.h"
#include "train/records/attempt.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"
#include "train/records/record_verify.h"

namespace speedrun {

// A track, and the folder of an attempt with three seeds per side and generated runs.
class RecordTest : public ::testing::Test {
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
        terms_.git_sha = "0123456789abcdef0123456789abcdef01234567";
        terms_.binary_sha256 = std::string(32, 'a') + "0123456789abcdef0123456789abcdef";
        terms_.config = config(16, 0.01);
        terms_.baseline = {"slow", "", config(16, 0.02)};
    }

    // Parameters: tables (320 + 64) w (257 tokens padded to 320), block 12 w² + 13 w, last norm 2 w. Total: 9,456 for
    // w = 16, 25,056 for w = 32.
    static std::string config(int width, double lr) {
        nlohmann::ordered_json json = nlohmann::ordered_json::parse(
            R"({"model": {"preset": "gpt2", "layers": {"count": 1}, "vocab_size": 257},
            "data": {"train": ["t.bin"], "val": ["v.bin"], "val_tokens": 0}, "eval": {"every": 6},
            "schedule": {"steps": 12, "warmup_steps": 0, "decay": "constant"},
            "batch": {"sequence_length": 64, "microbatch_tokens": 64, "tokens_per_step": 64},
            "optimizers": {"groups": [{"type": "adamw", "params": ["*"]}]},
            "record": {"track": "toy", "target_loss": 1.15}, "seed": 1})");
        json["model"]["model_dim"] = width;
        json["optimizers"]["groups"][0]["lr"] = lr;
        return json.dump();
    }

    void write_run(const AttemptRun& run, const std::string& metrics, const std::string& status = "done") {
        const std::string folder = "work/" + terms_.name + "/" + run.name() + "/";
        std::filesystem::create_directories(dir_.file(folder));
        dir_.write(folder + "metrics.jsonl", metrics);
        dir_.write(folder + "summary.json",
                   nlohmann::ordered_json(
                       {{"status", status}, {"val_loss", 1.0}, {"startup_ms", 5.5}, {"train_ms", 9}})
                       .dump());
        nlohmann::ordered_json environment = nlohmann::ordered_json::parse(
            R"({"host": "h", "cpu": {"model": "C", "cores": 2}, "ranks": [], "build": {"type": "Release"}})");
        environment["git_sha"] = "fedcba98fedcba98fedcba98fedcba98fedcba98";
        environment["time_utc"] =
            fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr) + run.order));
        dir_.write(folder + "environment.json", environment.dump());
    }

    // Candidate: loss 1.140 + 0.001 seed, 10 ms per step. Baseline: the same loss, 15 ms per step. Times vary a
    // little between runs and between attempts.
    AttemptFolder::Result make_result() {
        AttemptFolder attempt(dir_.file("work"), terms_);
        for (const AttemptRun& run : runs_of(terms_)) {
            const double wobble = 0.001 * static_cast<double>(run.seed);
            const bool candidate = run.side == kCandidate;
            const nlohmann::json made =
                nlohmann::json::parse(candidate ? terms_.config : terms_.baseline->config);
            const double later = terms_.name == "fast" ? 0 : 0.0001 * static_cast<double>(terms_.name.size());
            write_run(run, whole_metrics_of({.loss = 1.14 + wobble + (candidate ? 0 : baseline_above_),
                                             .step_ms = (candidate ? 10 : 15) + wobble + later,
                                             .lr = made.at("optimizers").at("groups").at(0).at("lr"),
                                             .seed = run.seed,
                                             .tokens_per_step = 64}));
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

    // Writes an attempt, with the number of its parameters, as a record. Returns the name of its folder.
    std::string record_of(AttemptFolder::Result result) {
        count_parameters(result.record, track(), "record");
        return std::filesystem::path(write(std::move(result))).filename().string();
    }
    Record read(const std::string& name) const { return read_record(dir_.file("records/toy/" + name)); }
    std::string problems(const std::string& name) const {
        std::string text;
        for (const std::string& p : verify_record(dir_.file("records/toy/" + name)).problems)
            text += p + "\n";
        return text;
    }

    static const RuleResult& rule(const Record& record, const std::string& name) {
        for (const RuleResult& r : record.rules) {
            if (r.rule == name) return r;
        }
        throw std::runtime_error(name);
    }

    // Sets the track's classes and other members of its file.
    void set_classes(const std::string& classes, const nlohmann::json& members = nlohmann::json::object()) {
        const std::string path = dir_.file("records/toy/track.json");
        nlohmann::json json = nlohmann::json::parse(read_text_file(path));
        json["classes"] = nlohmann::json::parse(classes);
        json.update(members);
        write_file(path, json.dump());
    }

    const TempDir dir_;
    AttemptTerms terms_;
    double baseline_above_ = 0;  // baseline loss − candidate loss, in nats
};

}  // namespace speedrun
