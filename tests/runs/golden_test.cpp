// The golden curve: losses of the first 50 steps on the King James text, f32, compared with committed ones. It detects errors
// that tests of operations cannot: a changed data order, initialisation, schedule or optimizer that still trains. To regenerate
// after an intended change:
// SPEEDRUN_WRITE_GOLDEN=tests/runs/golden_kjv.json build/release/runs_tests --gtest_filter='GoldenTest.*'
// build: in run_test_cases
// build: prepared
// Covers: data/zipf_tokens.cpp

#include "tests/runs/run_fixture.h"

namespace speedrun::testing::golden_test {

constexpr const char* kConfig = R"({
    "model": {"preset": "modern", "model_dim": 128, "vocab_size": 257,
              "tables": {"values": {"init": {"type": "normal", "value": 1}}},
              "layers": {"count": 2, "each": {"enter": [{"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}], "attention": {"heads": 2}},
                         "at": {"1": {"attention": {"value_table": "values"}}}}},
    "data": {"train": ["DATA/train_*.bin"], "val": ["DATA/val_*.bin"], "val_tokens": 20480},
    "batch": {"sequence_length": 128, "microbatch_tokens": 1024, "tokens_per_step": 2048},
    "optimizers": {"groups": [
        {"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02, "weight_decay": 0.1, "momentum_warmup_steps": 30},
        {"type": "adamw", "params": ["*"], "lr": 0.01, "weight_decay": 0.01}]},
    "schedule": {"steps": 50, "warmup_steps": 5, "cooldown_fraction": 0.4},
    "precision": "f32", "seed": 7
})";

TEST(GoldenTest, FirstFiftyStepsOnKingJames) {
    const fs::path data = project_root() / "data/kjv";
    if (!fs::exists(data / "dataset.json"))
        GTEST_SKIP() << "no dataset: run data/kjv/prepare.sh build/release/speedrun";
    std::string text = kConfig;
    for (size_t at; (at = text.find("DATA")) != std::string::npos;) text.replace(at, 4, data.string());
    const Config config = parse_config(text, "golden", {"device=" + run_device()});

    const TempDir out;
    std::vector<double> losses;
    {
        Runtime runtime(runtime_options(config));
        RunFolder folder(out.path(), "golden");
        const RunSummary summary = Trainer(config, runtime, {}, folder, {.quiet = true}).run();
        std::ifstream metrics(folder.path() + "/metrics.jsonl");
        for (std::string line; std::getline(metrics, line);) losses.push_back(Json::parse(line)["loss"]);
        EXPECT_EQ(losses.back(), *summary.val_loss);
    }
    if (const char* path = std::getenv("SPEEDRUN_WRITE_GOLDEN"))
        std::ofstream(path) << Json(losses).dump() << "\n";

    std::ifstream file(project_root() / "tests/runs/golden_kjv.json");
    const auto golden = Json::parse(file).get<std::vector<double>>();
    ASSERT_EQ(losses.size(), golden.size());
    for (size_t i = 0; i < golden.size(); ++i) {
        // Other processors, GPUs and libraries sum in other orders. Measured on a CPU, with noise of 2^-24·√K of the
        // root mean square added to every matmul (more than the f32 rounding of a sum of K terms): no loss changes by
        // more than 2e-6 (15 seeds), including Muon's amplification. Sixteen times this noise: 6e-5 (8 seeds). Thus
        // 1e-4 suffices for GPUs, other libraries and compilers, but not for matmuls in TF32. A wrong data order,
        // initial value or update changes the first losses by at least 1e-3.
        constexpr double kTolerance = 1e-4;
        EXPECT_NEAR(losses[i], golden[i], kTolerance * golden[i]) << "step " << i;
    }
}

}  // namespace speedrun::testing::golden_test
