// Updates from captured graphs: the values of each step, and what a graph contains.
// Covers: train/sharding/bucket_updates.cpp
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/step_runner.h"

namespace speedrun::testing::step_graphs_test {

using Settings = std::vector<std::string>;

constexpr int64_t kSteps = 8;

// Learning rate, momentum and bias corrections change in each step.
Config config_of(const Settings& more) {
    return parse_config(R"({
        "model": {"preset": "modern", "model_dim": 32, "vocab_size": 32, "windows": {"window": 0},
                  "layers": {"count": 2, "each": {"attention": {"heads": 2, "window": "window"}}}},
        "batch": {"sequence_length": 16, "microbatch_tokens": 32, "tokens_per_step": 64},
        "optimizers": {"groups": [
            {"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02, "weight_decay": 0.1,
             "momentum_warmup_steps": 6, "normuon": true},
            {"params": ["*"], "lr": 0.01, "weight_decay": 0.1}]},
        "schedule": {"steps": 8, "decay": "linear", "cooldown_fraction": 1, "final_lr_fraction": 0.1},
        "precision": "f32", "device": "cpu", "threads": 1})",
                        "test", more);
}

struct Trained {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> masters;
    size_t graphs = 0;
    bool operator==(const Trained&) const = default;
};

Trained train(const Config& config, bool graphs) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    static_cast<CpuDevice&>(runtime.device()).allow_graphs(graphs);
    StepRunner runner(config, runtime);
    runner.warm_up();
    EXPECT_EQ(runner.has_graphs(), graphs);
    runner.state().initialize(3);
    SyntheticBatches source(config);
    Trained trained;
    for (int64_t step = 0; step < kSteps; ++step) {
        runner.enqueue(step, source);
        const StepResult result = runner.collect();
        trained.losses.push_back(result.loss);
        trained.norms.push_back(result.grad_norm);
    }
    runtime.synchronize();
    for (const Parameter& p : runner.state().table().all()) {
        trained.masters.emplace_back(static_cast<size_t>(p.whole_numel()));
        runner.state().read_master(p, trained.masters.back().data());
    }
    trained.graphs = runner.state().schedule.num_step_graphs();
    return trained;
}

void expect_same(const Settings& settings, size_t graphs) {
    const Config config = config_of(settings);
    const Trained calls = train(config, false), replayed = train(config, true);
    EXPECT_EQ(replayed.losses, calls.losses);
    EXPECT_EQ(replayed.norms, calls.norms);
    EXPECT_EQ(replayed.masters, calls.masters);
    EXPECT_EQ(calls.graphs, 0u);
    EXPECT_EQ(replayed.graphs, graphs);
}

TEST(StepGraphsTest, NumbersOfEachStepReachGraph) {
    expect_same({}, 1);
    expect_same({"optimizers.clip=0.5", "optimizers.groups.1.cautious=true"}, 1);
}

// One graph per set of updated groups.
TEST(StepGraphsTest, GroupsOfOtherPeriods) {
    expect_same({"optimizers.groups.1.every=2"}, 2);
}

// The blend of two momenta changes in each step: only the transform of the matrices is a graph.
TEST(StepGraphsTest, OptimizerWithValuesInCalls) {
    expect_same({"optimizers.groups.0.slow_momentum=0.9", "optimizers.groups.0.slow_start=3"}, 1);
}

TEST(StepGraphsTest, UpdatesInBackward) {
    expect_same({"parallel.optimizer_step=in_backward"}, 1);
}

}  // namespace speedrun::testing::step_graphs_test
