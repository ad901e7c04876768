// The bench of a step: its table for given times, and for real steps of tiny models. No test depends on absolute times.
// build: release
// Covers: kernels/ops/metered_ops.cpp train/engine/run_estimate.cpp train/runlog/op_profile.cpp
#include "train/engine/step_bench.h"
#include "train/engine/run_estimate.h"

#include <algorithm>
#include <map>

#include "tests/errors.h"
#include "tests/runs/run_fixture.h"
#include "train/engine/batch_sources.h"

namespace speedrun::testing::step_bench_test {

Peaks round_peaks() {
    Peaks peaks;
    peaks.flops_per_s = 1e9;  // 1e6 per ms
    peaks.bytes_per_s = 1e9;
    return peaks;
}

TimedCall call(const char* op, int64_t step, double begin, double end, int64_t flops = 0, int64_t bytes = 0) {
    OpCost cost;
    cost.op = op;
    cost.flops = flops;
    cost.bytes = bytes;
    return {cost, step, begin, end};
}

TEST(StepProfileTest, AddsUpOperationsOverlapAndGaps) {
    // Step 0 is the lead-in and ends at 10. In step 1, from 10 to 20: a runs for 4 ms, overlapped with b for 2; idle for 5; c
    // runs for 1. The first operation of step 2, a, uses 0.5 ms of step 1's window.
    const StepProfile p = profile_steps(
        {call("a", 0, 0, 10), call("a", 1, 10, 14, 3000000, 1000000), call("b", 1, 11, 13, 0, 1500000),
         call("c", 1, 19, 20), call("a", 2, 19.5, 23), call("c", 2, 29, 30)},
        1, round_peaks());
    // Both steps take 10 ms and are counted.
    EXPECT_EQ(p.steps, 2);
    EXPECT_DOUBLE_EQ(p.step_ms, 10);
    ASSERT_EQ(p.operations.size(), 3u);
    const OperationStats &a = p.operations[0], &b = p.operations[1];
    EXPECT_EQ(a.name, "a");
    EXPECT_DOUBLE_EQ(a.calls, 1);
    EXPECT_DOUBLE_EQ(a.ms, (4 + 0.5 + 3) / 2);
    EXPECT_DOUBLE_EQ(a.flops, 1.5e6);
    EXPECT_DOUBLE_EQ(a.bound_ms, 1.5);
    EXPECT_TRUE(a.compute_bound);
    EXPECT_EQ(b.name, "b");
    EXPECT_DOUBLE_EQ(b.calls, 0.5);
    EXPECT_DOUBLE_EQ(b.bound_ms, 0.75);
    EXPECT_FALSE(b.compute_bound);
    EXPECT_DOUBLE_EQ(p.bound_ms, 2.25);
    EXPECT_DOUBLE_EQ(p.operations_ms, (4 + 2 + 1 + 0.5 + 3 + 1) / 2);
    EXPECT_DOUBLE_EQ(p.overlapped_ms, 2.5 / 2);
    EXPECT_DOUBLE_EQ(p.gaps_ms, (5 + 6) / 2.0);
    EXPECT_DOUBLE_EQ(p.operations_ms - p.overlapped_ms + p.gaps_ms, p.step_ms);
}

TEST(StepProfileTest, AveragesMiddleHalfOfPeriods) {
    EXPECT_EQ(mean_of_middle_half({100, 2, 4, 0}), 3);
    EXPECT_EQ(mean_of_middle_half({5}), 5);
    EXPECT_THROW(mean_of_middle_half({}), Error);
    // Periods of two steps after step 0: 2, 40, 4 and 3 + 3 ms; the last step is in no period.
    std::vector<TimedCall> calls;
    double time = 0;
    int64_t step = 0;
    for (const double ms : {1.0, 1.0, 1.0, 20.0, 20.0, 2.0, 2.0, 3.0, 3.0, 50.0}) {
        calls.push_back(call(step % 2 == 0 ? "even" : "odd", step, time, time + ms));
        time += ms;
        ++step;
    }
    const StepProfile p = profile_steps(calls, 2, round_peaks());
    EXPECT_EQ(p.steps, 4);
    EXPECT_DOUBLE_EQ(p.step_ms, (2 + 2 + 3 + 3) / 4.0);
    for (const OperationStats& row : p.operations) EXPECT_DOUBLE_EQ(row.calls, 0.5) << row.name;
    EXPECT_THROW(profile_steps({call("a", 0, 0, 1), call("a", 1, 1, 2)}, 2, round_peaks()), Error);
}

class StepBenchTest : public RunFixture {
  protected:
    StepBench bench(Config config, int64_t steps = 2) {
        config.threads = 1;
        Runtime runtime(runtime_options(config));
        StepBenchOptions options;
        options.steps = steps;
        options.warmup = 1;
        options.peaks = {128, 1 << 20};
        return bench_steps(config, runtime, kAlone, options);
    }
    // Without the optimizer's matmuls, which the plan does not count as the model's work.
    static double model_flops(const StepBench& bench) {
        double flops = bench.profile.flops;
        for (const OperationStats& row : bench.profile.operations)
            if (row.name.starts_with("polar_express")) flops -= row.flops;
        return flops;
    }
    static std::map<std::string, double> calls_of(const StepBench& bench) {
        std::map<std::string, double> calls;
        for (const OperationStats& row : bench.profile.operations) {
            calls[row.name.substr(0, row.name.find(' '))] += row.calls;
            EXPECT_GE(row.ms, 0) << row.name;
            EXPECT_GT(row.bytes, 0) << row.name;
            EXPECT_GT(row.bound_ms, 0) << row.name;
        }
        return calls;
    }
};

TEST_F(StepBenchTest, ListsAllOperationsAndPlannedFlops) {
    const Config two_microbatches = config({"batch.tokens_per_step=1024", "threads=1"});
    const StepBench b = bench(two_microbatches);
    EXPECT_EQ(b.data, "dataset");
    EXPECT_EQ(model_flops(b), static_cast<double>(plan_memory(two_microbatches).work.front().flops));
    EXPECT_EQ(b.memory_bytes, plan_memory(two_microbatches).bytes);
    EXPECT_GT(b.peaks.flops_per_s, 0);
    EXPECT_GT(b.peaks.bytes_per_s, 0);
    EXPECT_GT(b.plain_step_ms, 0);
    EXPECT_GT(b.profile.step_ms, 0);
    EXPECT_GT(b.resident_bytes, 0);
    EXPECT_NEAR(b.profile.operations_ms - b.profile.overlapped_ms + b.profile.gaps_ms, b.profile.step_ms,
                1e-9);
    const std::map<std::string, double> calls = calls_of(b);
    const double layers = 2, microbatches = 2;
    // Each layer has 4 matmuls, each with two gradients; the head has one.
    const std::map<std::string, double> known = {{"matmul", microbatches * 3 * (4 * layers + 1)},
                                                 {"attention_forward", microbatches * layers},
                                                 {"attention_backward", microbatches * layers},
                                                 {"qk_norm_rotary_forward", microbatches * layers},
                                                 {"qk_norm_rotary_backward", microbatches * layers},
                                                 {"norm_forward", microbatches * (2 * layers + 2)},
                                                 {"norm_backward", microbatches * (2 * layers + 2)},
                                                 {"embedding_forward", microbatches},
                                                 {"sort_ids", microbatches},
                                                 {"embedding_backward", microbatches},
                                                 {"cross_entropy", microbatches},
                                                 {"sum", microbatches}};
    for (const auto& [op, count] : known) {
        ASSERT_TRUE(calls.count(op)) << op;
        EXPECT_DOUBLE_EQ(calls.at(op), count) << op;
    }
    for (const char* op : {"polar_express", "muon_momentum", "muon_apply", "adamw_step", "norm_term"})
        EXPECT_GT(calls.count(op), 0u) << op;
    // The first matmul of the MLPs: 512 tokens, a width of 32, ReLU² in its epilogue.
    const auto& rows = b.profile.operations;
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const OperationStats& row) {
        return row.name == "matmul 512x128x32 nt relu_squared" && row.calls == 4;
    }));
}

TEST_F(StepBenchTest, CountsRecomputationAndRareGroups) {
    const StepBench again = bench(config({"memory.activation_checkpointing=full"}));
    EXPECT_GT(again.work.recomputed_flops, 0);
    EXPECT_EQ(model_flops(again), static_cast<double>(again.work.flops + again.work.recomputed_flops));
    const StepBench rare = bench(config({"optimizers.groups.0.every=2"}), 3);
    EXPECT_EQ(rare.profile.steps % 2, 0);
    EXPECT_DOUBLE_EQ(calls_of(rare).at("polar_express"), calls_of(bench(config())).at("polar_express") / 2);
}

TEST_F(StepBenchTest, RunsWithoutDatasetAndRejectsDamaged) {
    EXPECT_EQ(bench(config({"data.train=[]"})).data, "synthetic");
    EXPECT_EQ(bench(config({"data.train=no/such/*.bin"})).data, "synthetic");
    fs::resize_file(folder_ / "train.bin", 1000);
    expect_error(ExitCode::data, {"train.bin"}, [&] { bench(config()); });
}

// Compares each step's loss with and without recording and timing of operations.
TEST_F(StepBenchTest, TimingIsBitwiseNeutral) {
    const Config c = config({"batch.tokens_per_step=1024", "threads=1"});
    const auto losses = [&](bool metered) {
        Runtime runtime(runtime_options(c));
        if (metered) runtime.meter().start();
        SyntheticBatches batches(c);
        StepRunner runner(c, runtime);
        runner.warm_up();
        runner.state().initialize(1);
        runner.start_clock();
        std::vector<double> values;
        for (int64_t step = 0; step < 4; ++step) {
            runner.enqueue(step, batches);
            const StepResult result = runner.collect();
            values.insert(values.end(), {result.loss, result.grad_norm});
        }
        return values;
    };
    EXPECT_EQ(losses(true), losses(false));
}

// Stages with equal shapes are timed once; the second stage has twice the number of rows.
TEST_F(StepBenchTest, EstimatesEveryStage) {
    const RunEstimate e =
        estimate_run(config({"schedule.steps=12", "schedule.stages=[4, 9, 12]",
                             "batch.tokens_per_step=[512, 4096, 512]", "threads=1", "data.train=[]"}),
                     0.2);
    ASSERT_EQ(e.stages.size(), 3u);
    EXPECT_EQ(e.stages[1].first_step, 4);
    EXPECT_EQ(e.stages[1].end_step, 9);
    EXPECT_GT(e.stages[0].step_ms, 0);
    EXPECT_EQ(e.stages[0].step_ms, e.stages[2].step_ms);
    EXPECT_GT(e.stages[1].step_ms, e.stages[0].step_ms);
    EXPECT_DOUBLE_EQ(e.train_ms(), 7 * e.stages[0].step_ms + 5 * e.stages[1].step_ms);
    EXPECT_FALSE(e.device.empty());
}

}  // namespace speedrun::testing::step_bench_test
