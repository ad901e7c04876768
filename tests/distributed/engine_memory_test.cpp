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

namespace speedrun::testing::engine_memory_test {

// Bytes of gradients in backward if each gradient is freed one stage after its last contribution.
int64_t ring_bytes(const std::string& words) {
    const Layout layout(mode_of(words));
    const UnitPasses stages(layout.table.num_units());
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
TEST(EngineMemoryTest, MemoryFallsWithShardedState) {
    for (const std::string muon : {"", " muon"}) {
        const auto memory_of = [&](const std::string& words) {
            return train_ranks(mode_of(words + " bf16" + muon)).memory;
        };
        auto alone = memory_of("ddp"), ddp = memory_of("ddp 1x4"), zero1 = memory_of("zero1 1x4"),
             zero2 = memory_of("zero2 1x4"), zero3 = memory_of("zero3 1x4");
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
        const int64_t ring = ring_bytes("zero2 1x4" + muon);
        EXPECT_LE(zero2["gradients"], ring + ring / 10 + alone["gradients"] * 3 / 10)
            << "gradients of two stages, 10% for gaps, and the rank's shards";
        EXPECT_LT(zero2["gradients"], zero1["gradients"]);
        if (muon.empty()) {
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
TEST(EngineMemoryTest, PlanMatchesRunExactly) {
    std::vector<Mode> modes = modes_of(kStrategies, {"1x3 /2 muon bf16", "2x2", "2x2 muon bf16 reduce_bf16"});
    for (const char* words :
         {"ddp 2x2 in_backward", "zero1 2x2 in_backward", "zero2 1x2 /2 muon bf16 tensor=2 heads=4",
          "zero2 1x2 /2 muon bf16 tensor=2 heads=4 sequence",
          "zero2 1x2 /2 muon bf16 tensor=2 heads=6 heads_per_matrix=2 model=newest",
          "zero2 1x2 /2 muon bf16 tensor=2 heads=6 heads_per_matrix=2 model=newest sequence"})
        modes.push_back(mode_of(words));
    for (const char* words : {"ddp 2x2 /2 model=parts", "zero2 2x2 /2 model=parts reduce_bf16"}) {
        modes.push_back(mode_of(words));
        exchange_rows(modes.back());
    }
    for (const Mode& mode : modes) {
        Runtime runtime(
            {.device = DeviceKind::cpu, .precision = *mode.config.precision, .threads = 1, .dry = true});
        StepRunner runner(mode.config, runtime, mode.ranks());
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
TEST(EngineMemoryTest, StepsInBackwardNeedOnlyTheRing) {
    for (const std::string& strategy : kStrategies) {
        const Mode mode = mode_of(strategy + " 1x4 in_backward");
        const int64_t held = train_ranks(mode).memory["gradients"], ring = ring_bytes(strategy + " 1x4");
        EXPECT_LE(held, ring + ring / 10) << strategy << ": 10% for gaps";
        const Layout layout(mode);
        EXPECT_LT(held, layout.buckets.elements() * 4 * 3 / 4);
    }
}

}  // namespace speedrun::testing::engine_memory_test
