// Fixture of whole runs: a small learnable dataset, a config, and access to the run's files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/dataset.h"
#include "data/shard.h"
#include "tests/temp_dir.h"
#include "train/config/config_json.h"
#include "train/engine/memory_plan.h"
#include "train/engine/trainer.h"

namespace speedrun::testing {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Settings = std::vector<std::string>;  // KEY=VALUE, as --set

// Device of all runs of this program: "cpu", unless main() sets another.
inline std::string& run_device() {
    static std::string device = "cpu";
    return device;
}

// Returns the project's root: the source tree, or SPEEDRUN_ROOT (a bundle on another machine).
inline fs::path project_root() {
    const char* const root = std::getenv("SPEEDRUN_ROOT");
    return root ? root : SPEEDRUN_SOURCE_ROOT;
}

constexpr int kVocab = 32, kSeparator = 31;

class RunFixture : public ::testing::Test {
  protected:
    void SetUp() override { write_counting_shards(); }

    // Documents that count upwards modulo 31 from a random start in steps of 1, 2 or 3. After two tokens the rest is
    // determined, so the loss of a trained model approaches the entropy of these two tokens.
    void write_counting_shards() {
        DatasetInfo info{.name = "counting",
                         .tokenizer = "bytes",
                         .vocab_size = kVocab,
                         .separator = kSeparator,
                         .shards = {}};
        for (const char* split : {"train", "val"}) {
            std::vector<uint16_t> tokens;
            uint64_t state = split[0];
            for (int document = 0; document < 800; ++document) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                int value = static_cast<int>((state >> 33) % kSeparator);
                const int stride = 1 + static_cast<int>((state >> 50) % 3);
                tokens.push_back(kSeparator);
                for (int i = 0; i < 31; ++i) {
                    tokens.push_back(static_cast<uint16_t>(value));
                    value = (value + stride) % kSeparator;
                }
            }
            const std::string file = std::string(split) + ".bin";
            const std::string path = (folder_ / file).string();
            write_shard(path, tokens);
            info.shards.push_back({file, split, static_cast<int64_t>(tokens.size()), sha256_file(path)});
        }
        write_dataset_info((folder_ / "dataset.json").string(), info);
    }

    Config config(const Settings& settings = {}, const Settings& more = {}) const {
        // Validating all 25,600 held-out tokens would dominate a run of a dozen steps.
        Settings all = {"data.train=" + (folder_ / "train.bin").string(),
                        "data.val=" + (folder_ / "val.bin").string(), "data.val_tokens=1000",
                        "device=" + run_device()};
        for (const Settings& list : {settings, more}) all.insert(all.end(), list.begin(), list.end());
        return parse_config(R"({
            "model": {"preset": "modern", "model_dim": 32, "vocab_size": 32, "windows": {"window": 0},
                      "layers": {"count": 2, "each": {"attention": {"heads": 2, "window": "window"}}}},
            "batch": {"sequence_length": 32, "microbatch_tokens": 512, "tokens_per_step": 512},
            "optimizers": {"groups": [
                {"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02, "momentum_warmup_steps": 10},
                {"type": "adamw", "params": ["*"], "lr": 0.02}]},
            "schedule": {"steps": 150, "cooldown_fraction": 0.5},
            "precision": "f32", "threads": 2, "seed": 3
        })",
                            "test", all);
    }

    RunSummary run(const Config& config, const std::string& name, const TrainerOptions& options) {
        Runtime runtime(runtime_options(config));
        RunFolder run_folder((folder_ / "logs").string(), name);
        Trainer trainer(config, runtime, {}, run_folder, options);
        return trainer.run();
    }
    RunSummary run(const Config& config, const std::string& name) {
        return run(config, name, {.quiet = true});
    }

    std::vector<Json> metrics(const std::string& name) const {
        std::vector<Json> lines;
        std::ifstream file(folder_ / "logs" / name / "metrics.jsonl");
        for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
        return lines;
    }
    // Returns loss and gradient norm of the steps from `first` on, and later validations, as the exact doubles in the file.
    std::vector<double> curve(const std::string& name, int64_t first = 0) const {
        std::vector<double> values;
        for (const Json& line : metrics(name)) {
            if (line["step"].get<int64_t>() < first) continue;
            values.push_back(line["loss"]);
            if (line["event"] == "step") values.push_back(line["grad_norm"]);
        }
        return values;
    }
    // Returns the losses of steps, without validations.
    std::vector<double> step_losses(const std::string& name) const {
        std::vector<double> values;
        for (const Json& line : metrics(name))
            if (line["event"] == "step") values.push_back(line["loss"]);
        return values;
    }

    const TempDir dir_;
    const fs::path folder_ = dir_.path();
};

}  // namespace speedrun::testing
