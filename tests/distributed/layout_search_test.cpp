// The layout that the search ranks first is as fast as the fastest layout. All layouts run on four thread ranks in
// virtual time.
#include "train/timeline/layout_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/distributed/engine.h"
#include "tests/distributed/virtual_steps.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::layout_search_test {

constexpr int kRanks = 4;

Config base() {
    Config config = mode_of("ddp 1x4 model=modern heads=4").config;
    config.parallel.shard = "auto";
    return config;
}

LayoutCost predicted(const Config& config, const Ranks& ranks, const NetworkModel& network) {
    const RecordedSteps steps = record_steps(config, virtual_options(DType::f32, kRanks), ranks, false);
    const StepTimeline step = predict_steps(steps, time_item, network_of(network), false);
    return {step.step_ms, step.exposed_ms, steps.memory_bytes};
}

double measured(const Config& config, const NetworkModel& network) {
    return virtual_step_ms(config, plan_ranks(config, kRanks), DType::f32, network, [&](const Ranks& ranks) {
        return std::make_unique<SyntheticBatches>(config, ranks);
    });
}

// Applies the settings to the config by the path of the command line.
Config with_settings(const Config& config, const std::vector<std::string>& settings) {
    return parse_config(config_to_json(config), "base", settings);
}

constexpr int64_t kPlenty = int64_t{1} << 40;

TEST(LayoutSearchTest, FirstLayoutIsNearFastest) {
    constexpr double kNear = 0.1;
    const Config config = base();
    // Bytes or latency dominate.
    for (const NetworkModel& network : {NetworkModel{1e-4, 2e6}, NetworkModel{20e-3, 0}}) {
        SCOPED_TRACE(network.latency_s);
        const LayoutSearch search =
            search_layouts(config, {kRanks, 8, kPlenty},
                           [&](const Config& c, const Ranks& ranks) { return predicted(c, ranks, network); });
        ASSERT_GE(search.layouts.size(), 10u);
        double best = 0, first = 0, worst = 0;
        for (const SearchedLayout& layout : search.layouts) {
            const double ms = measured(with_settings(config, layout.settings), network);
            if (&layout == &search.layouts.front()) best = first = ms;
            best = std::min(best, ms);
            worst = std::max(worst, ms);
        }
        EXPECT_LE(first, (1 + kNear) * best);
        EXPECT_GT(worst, 1.3 * best) << "all layouts take about the same time";
    }
}

TEST(LayoutSearchTest, TriesEveryAxisAndStrategy) {
    std::set<std::string> seen;
    const auto cost = [&](const Config& c, const Ranks& ranks) {
        EXPECT_EQ(ranks.size(), 1);
        EXPECT_EQ(ranks.mesh().world_size(), kRanks);
        seen.insert(fmt::format("{} {} {} {}", ranks.mesh().describe(), word_of(c.parallel.strategy),
                                c.parallel.sequence ? "sequence" : "", c.parallel.bucket_bytes));
        return LayoutCost{1, 0, 1};
    };
    const LayoutSearch search = search_layouts(base(), {kRanks, 2, kPlenty}, cost);
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"})
        EXPECT_EQ(seen.count(fmt::format("{} {}  0", plan_ranks(base(), kRanks).mesh().describe(), strategy)),
                  1u)
            << strategy;
    for (const char* part :
         {"context 2", "tensor 2", "replicate 2 x shard 2 x context 1", "sequence", "4194304"})
        EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [&](const std::string& text) {
            return text.find(part) != std::string::npos;
        })) << part;
    for (const std::string& text : seen)
        EXPECT_EQ(text.find("tensor 4"), std::string::npos) << text;  // two ranks per host
    EXPECT_EQ(search.too_large, 0);
    EXPECT_GE(search.tried, static_cast<int64_t>(search.layouts.size()));
}

// Layouts that exceed memory are left out. Checkpointing and smaller microbatches let more layouts fit.
TEST(LayoutSearchTest, DropsLayoutsAboveMemory) {
    const auto cost = [](const Config& c, const Ranks&) {
        const bool keeps = c.memory.activation_checkpointing == Checkpointing::none;
        return LayoutCost{keeps ? 1.0 : 2.0, 0, c.batch.microbatch_tokens * (keeps ? 100 : 50)};
    };
    const Config config = base();
    const int64_t largest = config.batch.tokens_per_step / kRanks;
    const LayoutSearch search = search_layouts(config, {kRanks, 8, 50 * largest}, cost);
    ASSERT_FALSE(search.layouts.empty());
    EXPECT_GT(search.too_large, 0);
    bool checkpoints = false;
    for (const SearchedLayout& layout : search.layouts) {
        EXPECT_LE(layout.cost.memory_bytes, 50 * largest);
        for (const std::string& setting : layout.settings)
            checkpoints |= setting == "memory.activation_checkpointing=selective";
    }
    EXPECT_TRUE(checkpoints);
    EXPECT_EQ(search.layouts.front().cost.step_ms, 1);
    EXPECT_TRUE(search_layouts(config, {kRanks, 8, 1}, cost).layouts.empty());
}

}  // namespace speedrun::testing::layout_search_test
