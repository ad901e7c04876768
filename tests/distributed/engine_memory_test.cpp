// Memory that the engine holds, against formulas and its plan.
// Covers: train/engine/memory_plan.cpp train/sharding/gradient_store.cpp
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/sharding/lifetimes.h"

namespace speedrun::testing {
namespace engine_memory_test {

std::map<std::string, int64_t> memory_of(Strategy strategy, int shard, OptimizerKind optimizer,
                                         OptimizerStep step = OptimizerStep::after_backward) {
    Mode mode{strategy, 1, shard, 1, optimizer, Launch::ready, DType::bf16};
    mode.optimizer_step = step;
    return train_ranks(mode).memory;
}

// Bytes of gradients in backward if each gradient is freed one stage after its last contribution.
int64_t ring_bytes(Strategy strategy, OptimizerKind optimizer) {
    const Mode mode{strategy, 1, 4, 1, optimizer, Launch::ready};
    const Layout layout(mode);
    const Stages stages(layout.table.num_units());
    int64_t most = 0;
    for (int stage = 0; stage < stages.count(); ++stage) {
        int64_t here = 0;
        for (const Bucket& bucket : layout.buckets.all()) {
            const Lifetime lifetime = gradient_of(bucket, stages);
            if (lifetime.first <= stage && stage <= lifetime.last + 1)
                here += layout.buckets.padded(bucket) * 4;
        }
        most = std::max(most, here);
    }
    return most;
}

// Memory that a strategy shards falls with the number of ranks.
TEST(EngineMemoryTest, RanksShareWhatTheStrategySays) {
    for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::muon}) {
        auto alone = memory_of(Strategy::ddp, 1, optimizer), ddp = memory_of(Strategy::ddp, 4, optimizer),
             zero1 = memory_of(Strategy::zero1, 4, optimizer),
             zero2 = memory_of(Strategy::zero2, 4, optimizer),
             zero3 = memory_of(Strategy::zero3, 4, optimizer);
        const auto share = [&](std::map<std::string, int64_t>& memory, const char* category) {
            return static_cast<double>(memory[category]) / static_cast<double>(alone[category]);
        };
        for (auto* sharded : {&zero1, &zero2, &zero3}) {
            for (const char* category : {"master weights", "optimizer state"}) {
                EXPECT_GE(share(*sharded, category), 0.25) << category;
                EXPECT_LT(share(*sharded, category), 0.30) << category << ": a quarter plus padding";
            }
        }
        EXPECT_GE(share(ddp, "gradients"), 1);
        EXPECT_LT(share(ddp, "gradients"), 1.05) << "padding";
        EXPECT_GE(share(zero1, "gradients"), 1);
        EXPECT_LT(share(zero3, "parameters"), share(zero1, "parameters"));
        const int64_t ring = ring_bytes(Strategy::zero2, optimizer);
        EXPECT_LE(zero2["gradients"], ring + ring / 10 + alone["gradients"] * 3 / 10)
            << "gradients of two stages, 10% for gaps, and the rank's shards";
        EXPECT_LT(zero2["gradients"], zero1["gradients"]);
        if (optimizer == OptimizerKind::adamw) {
            EXPECT_LT(share(ddp, "master weights"), 1.001) << "gaps";
            EXPECT_GE(share(ddp, "master weights"), 1);
            EXPECT_LT(share(ddp, "optimizer state"), 1.001);
            EXPECT_GE(share(ddp, "optimizer state"), 1);
        } else {
            EXPECT_LT(share(ddp, "optimizer state"), 1) << "matrices have one owner each";
        }
    }
}

// `plan` models one rank of many on a device that allocates nothing. Every buffer has the size of the run.
TEST(EngineMemoryTest, PlanAndRunAgreeToTheByte) {
    std::vector<Mode> modes;
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        modes.push_back({strategy, 1, 3, 2, OptimizerKind::muon, Launch::ready, DType::bf16});
        modes.push_back({strategy, 2, 2, 1, OptimizerKind::adamw, Launch::ready});
        modes.push_back({strategy, 2, 2, 1, OptimizerKind::muon, Launch::ready, DType::bf16});
        modes.back().reduce_dtype = DType::bf16;
    }
    for (const bool sequence : {false, true}) {
        modes.push_back({Strategy::zero2, 1, 2, 2, OptimizerKind::muon, Launch::ready, DType::bf16});
        modes.back().tensor = 2;
        modes.back().heads = 4;
        modes.back().sequence = sequence;
        modes.push_back(modes.back());
        modes.back().family = "newest";
        modes.back().heads = 6;
        modes.back().heads_per_matrix = 2;
    }
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero2}) {
        modes.push_back({strategy, 2, 2, 2, OptimizerKind::adamw, Launch::ready});
        modes.back().family = "parts";
        modes.back().exchange_rows = true;
        modes.back().reduce_dtype = strategy == Strategy::ddp ? DType::f32 : DType::bf16;
    }
    modes[1].optimizer_step = modes[4].optimizer_step = OptimizerStep::in_backward;
    modes[4].accumulation = 1;
    for (const Mode& mode : modes) {
        const Config config = config_of(mode);
        Runtime runtime({.device = DeviceKind::cpu, .precision = mode.precision, .threads = 1, .dry = true});
        StepRunner runner(config, runtime, Layout(mode).ranks);
        runner.warm_up();
        std::map<std::string, int64_t> planned;
        for (int i = 0; i < kNumMemoryCategories; ++i) {
            const auto category = static_cast<MemoryCategory>(i);
            planned[std::string(name_of(category))] = runtime.device().memory().total(category);
        }
        EXPECT_EQ(planned, train_ranks(mode).memory) << ::testing::PrintToString(mode);
    }
}

// With optimizer steps in backward, a run never holds all gradients.
TEST(EngineMemoryTest, StepsInBackwardNeedTheRingAlone) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::zero3}) {
        Mode mode{strategy, 1, 4, 1, OptimizerKind::adamw, Launch::ready};
        mode.optimizer_step = OptimizerStep::in_backward;
        const int64_t held = train_ranks(mode).memory["gradients"],
                      ring = ring_bytes(strategy, OptimizerKind::adamw);
        EXPECT_LE(held, ring + ring / 10) << word_of(strategy) << ": 10% for gaps";
        const Layout layout(mode);
        EXPECT_LT(held, layout.buckets.elements() * 4 * 3 / 4);
    }
}

}  // namespace engine_memory_test
}  // namespace speedrun::testing
