// Ranks as a value, and their derivation from the config: mesh and batch sizes, shares of the cores, and joint errors
// of all ranks.
// Covers: train/comm/joint_check.cpp train/sharding/ranks.cpp
#include "train/sharding/resolve_ranks.h"
#include "tests/errors.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "kernels/device/error.h"
#include "tests/distributed/rank_threads.h"
#include "train/comm/joint_check.h"
#include "train/comm/world.h"
#include "train/model/parts/compose_heads.h"
#include "train/model/parts/key_offset.h"
#include "train/model/parts/paired_heads.h"

namespace speedrun::testing::resolve_ranks_test {

Config config_of(int64_t sequence_length, int64_t microbatch_tokens, int64_t tokens_per_step) {
    Config config;
    config.batch = {.sequence_length = sequence_length,
                    .microbatch_tokens = microbatch_tokens,
                    .tokens_per_step = tokens_per_step};
    return config;
}

std::string refusal(const Config& config, int ranks) {
    return error_of(ExitCode::usage, [&] { plan_ranks(config, ranks); });
}

TEST(RanksTest, ConstructorResolvesSharing) {
    const Ranks alone;
    EXPECT_EQ(alone.world(), nullptr);
    EXPECT_EQ(alone.mesh().world_size(), 1);
    EXPECT_EQ(alone.sharing().accumulate, Accumulate::local);
    const Ranks planned(Mesh({1, 2, 1, 1}), {.strategy = Strategy::zero3});
    EXPECT_EQ(planned.sharing().accumulate, Accumulate::reduce_scatter);
    EXPECT_EQ(planned.sharing().reshard_after_forward, Reshard::except_last);
    const Sharing refused{.strategy = Strategy::zero2, .accumulate = Accumulate::local};
    EXPECT_THROW(Ranks(Mesh(), refused), Error) << "resolve_sharing refuses it";
}

TEST(RanksTest, WorldSizeMustMatchMesh) {
    run_ranks(2, [](World& world) {
        const Ranks planned(Mesh({1, 2, 1, 1}), {}), three(Mesh({3, 1, 1, 1}), {});
        const Ranks running = planned.with_world(world);
        EXPECT_EQ(running.world(), &world);
        EXPECT_EQ(running.rank(), world.rank());
        EXPECT_EQ(running.size(), 2);
        EXPECT_EQ(planned.world(), nullptr) << "with_world changed its source";
        EXPECT_EQ(running.without_world().world(), nullptr);
        EXPECT_EQ(running.without_world().mesh().world_size(), 2);
        EXPECT_EQ(error_of(ExitCode::failure, [&] { three.with_world(world); }),
                  "a world of 2 ranks for a mesh of 3 (replicate 3 x shard 1 x context 1 x tensor 1)");
        EXPECT_THROW(Ranks(Mesh(), {}, &world), Error);
    });
}

TEST(ResolveRanksTest, DerivesMeshFromConfig) {
    Config config = config_of(64, 128, 1024);
    config.parallel.replicate = 2;
    config.parallel.strategy = Strategy::zero1;
    config.parallel.launch = Launch::after_backward;
    const Ranks ranks = plan_ranks(config, 8);
    EXPECT_EQ(ranks.mesh().describe(), "replicate 2 x shard 4 x context 1 x tensor 1");
    EXPECT_EQ(ranks.num_data_ranks(), 8);
    EXPECT_EQ(ranks.sharing().strategy, Strategy::zero1);
    EXPECT_EQ(ranks.sharing().launch, Launch::after_backward);
    EXPECT_TRUE(ranks.sharing().accumulate.has_value());  // resolved
    EXPECT_EQ(config.microbatches_per_step(ranks.num_data_ranks()), 1);
    EXPECT_EQ(config.microbatches_per_step(), 8);
}

TEST(ResolveRanksTest, IndivisibleBatchErrorShowsFix) {
    EXPECT_EQ(refusal(config_of(64, 128, 1024), 4), "accepted");
    EXPECT_EQ(refusal(config_of(64, 256, 768), 2),
              "batch.tokens_per_step 768 is not a multiple of batch.microbatch_tokens 256 x 2 ranks = 512: "
              "set batch.tokens_per_step to a multiple of 512, or --set batch.microbatch_tokens=192");
    EXPECT_EQ(refusal(config_of(64, 192, 768), 2), "accepted");  // the advised setting
    EXPECT_EQ(refusal(config_of(64, 256, 768), 5),
              "batch.tokens_per_step 768 is not a multiple of batch.microbatch_tokens 256 x 5 ranks = 1280: "
              "set batch.tokens_per_step to a multiple of 1280; 12 sequences cannot be shared by 5 ranks");
}

// Paired heads are not cut among ranks. Layers are numbered from 0.
TEST(ResolveRanksTest, RejectsContextWithPairedHeads) {
    const auto refused = [](bool key_offset, bool paired, const ParallelConfig& parallel) {
        Config config = config_of(64, 128, 1024);
        LayerConfig layer;
        if (key_offset) layer.attention->parts.set(KeyOffsetPart{});
        if (paired) layer.attention->parts.set(PairedHeadsPart{});
        config.model.parts.layers.at = {{"2-3", layer}};
        config.parallel = parallel;
        return refusal(config, 2);
    };
    ParallelConfig context, tensor;
    context.context = tensor.tensor = 2;
    EXPECT_EQ(refused(false, false, context), "accepted");
    EXPECT_EQ(refused(true, true, {}), "accepted");
    EXPECT_EQ(refused(true, false, tensor), "accepted");
    EXPECT_EQ(refused(true, false, context), "accepted");
    EXPECT_THAT(refused(false, true, context),
                HasSubstr("parallel.context is 2, but attention of layer 2 has paired"));
    EXPECT_EQ(refused(false, true, tensor), "accepted") << "each rank has all heads";
}

// Attention that ranks do not divide permits any number of ranks.
TEST(ResolveRanksTest, HeadsMustDivideAmongTensorRanks) {
    Config config = config_of(64, 128, 1024);
    config.parallel.tensor = 8;
    ASSERT_EQ(config.model.parts.layers.each.attention->heads, 4);
    EXPECT_THAT(refusal(config, 8), HasSubstr("parallel.tensor is 8, but attention of layer 0 has 4 heads"));
    config.model.parts.layers.each.attention->parts.set(PairedHeadsPart{});
    EXPECT_EQ(refusal(config, 8), "accepted");
}

TEST(ResolveRanksTest, RejectsContextWithComposeHeads) {
    const auto refused = [](const ParallelConfig& parallel) {
        Config config = config_of(64, 128, 1024);
        LayerConfig layer;
        layer.attention->parts.set(ComposeHeadsPart{});
        config.model.parts.layers.at = {{"1", layer}};
        config.parallel = parallel;
        return refusal(config, 2);
    };
    ParallelConfig context, tensor;
    context.context = tensor.tensor = 2;
    EXPECT_EQ(refused({}), "accepted");
    EXPECT_THAT(refused(context),
                HasSubstr("parallel.context is 2, but attention of layer 1 has compose_heads"));
    EXPECT_EQ(refused(tensor), "accepted");
}

// Distinct outcomes, "code text", of all ranks. texts: error of each rank's check; "": none.
std::set<std::string> outcomes(const std::vector<std::string>& texts, ExitCode code) {
    std::mutex mutex;
    std::set<std::string> seen;
    run_ranks(static_cast<int>(texts.size()), [&](World& world) {
        std::string outcome = "passed";
        try {
            check_together(world, [&] {
                const std::string& text = texts[static_cast<size_t>(world.rank())];
                if (!text.empty()) throw Error(code, text);
            });
        } catch (const JointError& error) {
            outcome = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
        }
        const std::lock_guard lock(mutex);
        seen.insert(outcome);
    });
    return seen;
}

TEST(JointCheckTest, AllRanksReceiveAnyError) {
    using Outcomes = std::set<std::string>;
    EXPECT_EQ(outcomes({"", "", ""}, ExitCode::usage), Outcomes{"passed"});
    EXPECT_EQ(outcomes({"bad", "bad", "bad"}, ExitCode::usage), Outcomes{"2 bad"});
    EXPECT_EQ(outcomes({"", "gone", ""}, ExitCode::data), Outcomes{"3 rank 1: gone"});
    EXPECT_EQ(outcomes({"", "gone", "gone", "torn"}, ExitCode::data),
              Outcomes{"3 rank 1: gone\nrank 3: torn"});
    EXPECT_EQ(outcomes({"alone"}, ExitCode::usage), Outcomes{"2 alone"});
}

TEST(JointCheckTest, OneRankPrintsSharedError) {
    ::testing::internal::CaptureStderr();
    run_ranks(3, [](World& world) {
        const int code = run_rank(world, [&] {
            check_together(world, [] { throw_data("shard 7 is damaged"); });
            return 0;
        });
        EXPECT_EQ(code, 3);
    });
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: shard 7 is damaged\n");
}

}  // namespace speedrun::testing::resolve_ranks_test
