// Whole runs, in process: a toy task to convergence, bitwise equal reruns, warm-up that changes nothing,
// divergence, accumulation, and the files of a run folder.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/dataset.h"
#include "data/shard.h"
#include "train/config/config_json.h"

namespace speedrun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kVocab = 32, kSeparator = 31;

class TrainerTest : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = fs::temp_directory_path() /
                  ("speedrun_trainer_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        fs::create_directories(folder_);
        write_counting_shards();
    }
    void TearDown() override { fs::remove_all(folder_); }

    // Documents that count upwards modulo 31 from a random start in steps of 1, 2 or 3: after two tokens
    // everything that follows is certain, so the loss of a model that has learned it goes towards the share
    // of those two.
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
            write_shard((folder_ / file).string(), tokens);
            info.shards.push_back({file, split, static_cast<int64_t>(tokens.size()), std::string(64, '0')});
        }
        write_dataset_info((folder_ / "dataset.json").string(), info);
    }

    Config config(const std::vector<std::string>& settings = {}) const {
        std::vector<std::string> all = {"data.train=" + (folder_ / "train.bin").string(),
                                        "data.val=" + (folder_ / "val.bin").string()};
        all.insert(all.end(), settings.begin(), settings.end());
        return parse_config(R"({
            "model": {"preset": "modern", "num_layers": 2, "model_dim": 32, "num_heads": 2, "vocab_size": 32},
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
        Runtime runtime({.device = config.device,
                         .precision = config.precision,
                         .threads = static_cast<int>(config.threads)});
        RunFolder run_folder((folder_ / "logs").string(), name);
        Trainer trainer(config, runtime, run_folder, options);
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
    // Loss and gradient norm of every step, as the exact doubles that the file holds.
    std::vector<double> curve(const std::string& name) const {
        std::vector<double> values;
        for (const Json& line : metrics(name)) {
            values.push_back(line["loss"]);
            if (line["event"] == "step") values.push_back(line["grad_norm"]);
        }
        return values;
    }

    fs::path folder_;
};

TEST_F(TrainerTest, ToyTaskConverges) {
    for (const char* preset : {"modern", "gpt2"}) {
        Config toy =
            config({"schedule.steps=250", std::string("model.preset=") + preset, "data.shuffle=false"});
        if (std::string(preset) == "gpt2")
            toy.optimizers.groups[0].params = {"blocks.*.attn.*.weight", "blocks.*.mlp.*.weight"};
        const RunSummary summary = run(toy, preset);
        // Unshuffled, every row is one document. Of its 32 tokens, the first is drawn from 31 values, the
        // second from 3: (ln 31 + ln 3) / 32 = 0.14 nats is the entropy. 0.2 leaves room for a small model
        // and shows that it learned to count and to look back.
        EXPECT_LT(*summary.val_loss, 0.2) << preset;
        EXPECT_GT(*summary.val_loss, 0.14) << preset << ": below the entropy: it sees the future";
    }
}

TEST_F(TrainerTest, RerunsAreBitwiseEqual) {
    const Config c = config({"schedule.steps=20", "eval.every=10"});
    run(c, "first");
    run(c, "second");
    EXPECT_EQ(curve("first"), curve("second"));
    EXPECT_EQ(curve("first").size(), 20u * 2 + 2);
}

TEST_F(TrainerTest, WarmUpChangesNothing) {
    const Config c = config({"schedule.steps=10", "batch.tokens_per_step=1024"});
    run(c, "warm", {.quiet = true, .warm_up = true});
    run(c, "cold", {.quiet = true, .warm_up = false});
    EXPECT_EQ(curve("warm"), curve("cold"));
}

TEST_F(TrainerTest, ValidationInBetweenChangesNothing) {
    run(config({"schedule.steps=10"}), "without");
    run(config({"schedule.steps=10", "eval.every=2"}), "with");
    std::vector<double> without, with;
    for (const Json& line : metrics("without"))
        if (line["event"] == "step") without.push_back(line["loss"]);
    for (const Json& line : metrics("with"))
        if (line["event"] == "step") with.push_back(line["loss"]);
    EXPECT_EQ(without, with);
}

TEST_F(TrainerTest, AccumulationEqualsOneBatch) {
    run(config({"schedule.steps=10", "batch.tokens_per_step=2048", "batch.microbatch_tokens=2048"}), "whole");
    run(config({"schedule.steps=10", "batch.tokens_per_step=2048", "batch.microbatch_tokens=512"}), "parts");
    const std::vector<double> whole = curve("whole"), parts = curve("parts");
    ASSERT_EQ(whole.size(), parts.size());
    // The same sums in another order: f32 rounding, amplified by ten steps of Muon (its polar factor is of a
    // matrix whose small singular values carry little more than rounding).
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 2e-3 * std::abs(whole[i])) << i;
    // The first step's loss and norm have seen no update.
    EXPECT_NEAR(parts[0], whole[0], 1e-6 * whole[0]);
    EXPECT_NEAR(parts[1], whole[1], 1e-5 * whole[1]);
}

TEST_F(TrainerTest, DivergenceNamesStepAndParameter) {
    try {
        run(config({"schedule.steps=20", "optimizers.groups.1.lr=1000",
                    "optimizers.groups.1.weight_decay=1000"}),
            "wild");
        FAIL() << "weights that grow a million times a step went unnoticed";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::diverged);
        EXPECT_NE(std::string(error.what()).find("diverged at step"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("weight"), std::string::npos) << error.what();
    }
    std::ifstream file(folder_ / "logs" / "wild" / "summary.json");
    EXPECT_EQ(Json::parse(file)["status"], "diverged");
}

TEST_F(TrainerTest, ClippingBoundsTheUpdateNotTheLoggedNorm) {
    run(config({"schedule.steps=2"}), "free");
    run(config({"schedule.steps=2", "optimizers.clip=0.001"}), "clipped");
    EXPECT_EQ(curve("free")[1], curve("clipped")[1]);  // the first step's norm is logged before clipping
}

TEST_F(TrainerTest, FilesOfARun) {
    const RunSummary summary = run(config({"schedule.steps=6", "eval.every=3", "record.target_loss=100"}),
                                   "files", {.quiet = true, .trace_first = 4, .trace_last = 5});
    EXPECT_TRUE(summary.target_reached());
    const std::vector<Json> lines = metrics("files");
    ASSERT_EQ(lines.size(), 8u);  // 6 steps, validation after 3 and after 6
    EXPECT_EQ(lines[3]["event"], "val");
    EXPECT_EQ(lines[3]["step"], 3);
    EXPECT_EQ(lines[7]["event"], "val");
    double before = 0;
    for (const Json& line : lines) {
        EXPECT_GE(line["train_ms"].get<double>(), before);
        before = line["train_ms"];
        if (line["event"] != "step") continue;
        for (const char* key :
             {"step", "loss", "grad_norm", "lr", "step_ms", "tokens", "tokens_per_s", "comm_exposed_ms"}) {
            EXPECT_TRUE(line.contains(key)) << key;
        }
    }
    // Validation is outside the clock: the last step and the validation after it show the same training time.
    EXPECT_NEAR(lines[7]["train_ms"].get<double>(), lines[6]["train_ms"].get<double>(), 1.0);
    std::ifstream trace(folder_ / "logs" / "files" / "trace.json");
    const Json events = Json::parse(trace)["traceEvents"];
    int attention = 0;
    for (const Json& event : events) attention += event["name"] == "attention_forward";
    EXPECT_EQ(attention, 2 * 2);  // two steps of two layers
    EXPECT_THROW(RunFolder((folder_ / "logs").string(), "files"), Error);
}

}  // namespace
}  // namespace speedrun
