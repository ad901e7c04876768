// Modelled times of attention by the tiles that its kernels visit, against the report of one H100 (records/gpu_checks).
// build: release
#include "kernels/ops/attention_tiles.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/text_file.h"
#include "tests/bench/shapes.h"
#include "tests/runs/run_fixture.h"
#include "train/engine/step_model.h"

namespace speedrun::testing::attention_tiles_test {

double modelled_ms(OpCost cost, const AttentionShape& shape, std::span<const int32_t> first_keys,
                   KernelChoice choice = {}) {
    cost.attention = shape;
    const KernelModel kernel = kernel_model(cost.op, choice);
    const AttentionTiming* const timing = attention_timing(cost, DType::bf16, kernel);
    if (!timing) return 0;
    return model_call(cost, DType::bf16, find_gpu_model("h100"), kernel, 0,
                      attention_work(shape, timing->tiling, first_keys))
        .ms;
}

TEST(AttentionTilesTest, TimesTheReportsCases) {
    const Json report =
        Json::parse(read_text_file(SPEEDRUN_SOURCE_ROOT "/records/gpu_checks/2026-11-27_h100.json"));
    const bench::ModelShape recipe = bench::full_shapes().recipe;
    const std::vector<int32_t> first_keys = bench::documents_of(recipe).first_key;
    int cases = 0;
    for (const Json& measured : report["ops"]) {
        const std::string op = measured["op"], name = measured["name"];
        if (op != "attention_forward" && op != "attention_backward") continue;
        if (name.find(".rank.") != std::string::npos) continue;  // queries of a context rank: not fitted
        long long tokens = 0, keys = 0, heads = 0, head_dim = 0;
        const std::string text = measured["shape"];
        ASSERT_EQ(std::sscanf(text.c_str(), "T%lld S%lld %lldx%lld", &tokens, &keys, &heads, &head_dim), 4);
        const bool documents = name.find("attention.recipe.") == 0;
        const AttentionShape shape{
            tokens / keys, keys, keys, heads, head_dim, head_dim, documents ? recipe.window : 0, documents};
        OpCost cost;
        cost.op = op == "attention_forward" ? "attention_forward" : "attention_backward";
        const double ms = modelled_ms(cost, shape, first_keys), expected = measured["median_ms"];
        std::printf("%-40s measured %7.4f ms, modelled %7.4f, %+.1f%%\n", name.c_str(), expected, ms,
                    100 * (ms / expected - 1));
        EXPECT_NEAR(ms, expected, 0.03 * expected) << name;
        ++cases;
    }
    EXPECT_EQ(cases, 20);
}

TEST(AttentionTilesTest, VisitsTheTilesOfTheKernels) {
    const AttentionTiling tiling{32, 32};
    // 256 queries, causal: blocks of 128 visit 4 and 8 tiles of keys; owners of keys 8 and 4 tiles of queries.
    const AttentionShape causal{1, 256, 256, 1, 128, 128, 0, false};
    EXPECT_EQ(attention_work(causal, {32, 0}, {}).tiles, 12);
    EXPECT_EQ(attention_work(causal, {32, 0}, {}).blocks, 2);
    EXPECT_EQ(attention_work(causal, tiling, {}).tiles, 24);
    EXPECT_EQ(attention_work(causal, tiling, {}).blocks, 4);
    EXPECT_EQ(attention_work(causal, tiling, {}).visible, 1);
    // A window of 33: the second block starts at key 96, the first owner of keys ends at query 159.
    AttentionShape window = causal;
    window.window = 33;
    EXPECT_EQ(attention_work(window, {32, 0}, {}).tiles, 4 + 5);
    EXPECT_EQ(attention_work(window, tiling, {}).tiles, 9 + 5 + 4);
    // Documents begin at 0 and 160: the second block still starts at key 0, as its first queries belong to the first document;
    // the first owner of keys ends with group 128 to 160.
    std::vector<int32_t> first_keys(256, 0);
    std::fill(first_keys.begin() + 160, first_keys.end(), 160);
    AttentionShape documents = causal;
    documents.documents = true;
    const AttentionWork work = attention_work(documents, tiling, first_keys);
    EXPECT_EQ(work.tiles, 12 + 5 + 4);
    EXPECT_DOUBLE_EQ(work.visible, (160 * 161 + 96 * 97) / (256.0 * 257));
    // Without the mask the documents do not matter; sequences and heads multiply.
    EXPECT_EQ(attention_work(causal, tiling, first_keys).tiles, 24);
    const AttentionShape more{3, 256, 256, 4, 128, 128, 0, false};
    EXPECT_EQ(attention_work(more, tiling, {}).tiles, 24 * 12);
    // A context rank's 128 queries: the first and the last 64 of 256, in one block that visits all keys up to its last query.
    const AttentionShape part{1, 128, 256, 1, 128, 128, 0, false};
    EXPECT_EQ(attention_work(part, {32, 0}, {}).tiles, 8);
}

// Matmuls of a tile follow the widths: at the H100's rate for a multiprocessor, a tenth above the count.
TEST(AttentionTilesTest, TimesEachWidthByWgmma) {
    const GpuModel& h100 = find_gpu_model("h100");
    const double us_per_column = 1.1 * 2 * 128 * 128 / (h100.bf16_flops_per_s / h100.num_sms) * 1e6;
    const auto tile_us = [](const char* op, HeadWidths widths) {
        OpCost cost;
        cost.op = op;
        cost.attention = {1, 256, 256, 1, widths.head_dim, widths.value_dim, 0, false};
        const AttentionTiming* const timing =
            attention_timing(cost, DType::bf16, kernel_model(op, {.wgmma_attention = true}));
        return timing ? timing->tile_us : 0;
    };
    for (const HeadWidths& widths : kWgmmaHeadWidths) {
        SCOPED_TRACE(fmt::format("{}/{}", widths.head_dim, widths.value_dim));
        const auto d = static_cast<double>(widths.head_dim), dv = static_cast<double>(widths.value_dim),
                   padded = widths.head_dim > 64 ? 128.0 : 64.0,
                   padded_v = widths.value_dim > 64 ? 128.0 : 64.0;
        // A tile of backward has half of the rows. Its time is the mean of both kernels.
        const double forward_us = us_per_column * (d + padded_v),
                     backward_us = us_per_column / 4 * (2 * (d + dv) + 2 * padded + padded_v);
        const double forward = tile_us("attention_forward", widths) - forward_us,
                     backward = tile_us("attention_backward", widths) - backward_us;
        EXPECT_NEAR(forward, 0.585, 0.025) << "instructions, us";
        EXPECT_NEAR(backward, 0.333, 0.025) << "instructions, us";
    }
    EXPECT_EQ(tile_us("attention_forward", {128, 64}), 0) << "no kernel";
    EXPECT_TRUE(wgmma_serves({1, 256, 256, 1, 64, 128, 0, false}));
    EXPECT_FALSE(wgmma_serves({1, 256, 256, 1, 64, 96, 0, false}));
    EXPECT_FALSE(wgmma_serves({1, 128, 256, 1, 64, 128, 0, false})) << "queries of a context rank";
}

// Attention that wgmma does not serve is modelled as the kernels that run.
TEST(AttentionTilesTest, ModelsTheKernelsThatRun) {
    const auto times_of = [](const char* attention) {
        return OperationTimes(read_config(SPEEDRUN_SOURCE_ROOT "/configs/124m_modern.json",
                                          {std::string("cuda.attention=") + attention}),
                              find_gpu_model("h100"), nullptr);
    };
    const auto cost_of = [](HeadWidths widths) {
        OpCost cost;
        cost.op = "attention_forward";
        cost.attention = {1, 2048, 2048, 6, widths.head_dim, widths.value_dim, 0, false};
        cost.flops = 6 * (widths.head_dim + widths.value_dim) * 2048 * 2049;
        return cost;
    };
    const OperationTimes wgmma = times_of("wgmma"), native = times_of("hand");
    const std::string portable = kernel_model("attention_forward", {.portable_attention = true}).source;
    EXPECT_EQ(wgmma.source_of(cost_of({64, 128})),
              kernel_model("attention_forward", {.wgmma_attention = true}).source);
    EXPECT_EQ(wgmma.source_of(cost_of({64, 96})), portable);
    EXPECT_EQ(native.source_of(cost_of({96, 128})), portable);
    EXPECT_NE(wgmma.source_of(cost_of({128, 64})), portable);
    // Two widths take between the times of one by mma. Portable kernels lack tensor cores.
    const auto ms = [&](HeadWidths widths) { return native.of(cost_of(widths)).ms; };
    for (const HeadWidths& widths : {HeadWidths{64, 128}, HeadWidths{128, 64}}) {
        EXPECT_GT(ms(widths), 1.05 * ms({64, 64}));
        EXPECT_LT(ms(widths), 0.95 * ms({128, 128}));
    }
    EXPECT_GT(ms({96, 128}), 10 * ms({128, 128}));
}

}  // namespace speedrun::testing::attention_tiles_test
