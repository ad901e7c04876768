// Memory traffic of the pointwise operations of the newest recipe, in its longest stage: a pass over the stream that is
// added without notice fails here.
// build: release
// Covers: train/model/nodes/scaled_rows.cpp
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "tests/runs/run_fixture.h"
#include "train/engine/step_model.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::pointwise_bytes_test {

// Memory-bound operations over rows of the stream. Not counted: loss, embeddings, optimizer, quantize, narrow linears.
const std::set<std::string> kPointwise = {"activation_backward",
                                          "activation_forward",
                                          "add",
                                          "exclude_own_value_backward",
                                          "exclude_own_value_forward",
                                          "norm_backward",
                                          "norm_forward",
                                          "offset_keys_backward",
                                          "offset_keys_forward",
                                          "qk_norm_rotary_backward",
                                          "qk_norm_rotary_forward",
                                          "silu_product_backward",
                                          "shared_sources_backward",
                                          "silu_product_forward",
                                          "sum_norm_backward",
                                          "sum_norm_forward",
                                          "weighted_sum_backward",
                                          "weighted_sum_forward"};

TEST(PointwiseBytesTest, LongestStageOfTheNewestRecipe) {
    const Config config = read_config(SPEEDRUN_SOURCE_ROOT "/configs/fineweb_newest_8xh100.json", {});
    const Config stage = config.in_stage(3);
    const StepModel step = model_step(stage, plan_ranks(stage, 8), find_gpu_model("h100"));
    double bytes = 0;
    for (const ModelledOperation& row : step.operations) {
        if (!kPointwise.count(row.name)) continue;
        std::printf("%-28s %5.1f calls %7.3f GB\n", row.name.c_str(), row.calls, row.bytes / 1e9);
        bytes += row.bytes;
    }
    EXPECT_LE(bytes, 45e9);
    EXPECT_GT(bytes, 30.0e9) << "operations have other names";
}

// The matmuls of the modern recipe add their result to the stream: norms read no second tensor, except the first embedding before
// attention. In rows of the stream, forward: 13 norms read and write one each; 12 with a mix read two and write two.
TEST(PointwiseBytesTest, NormsOfTheModernRecipeReadTheSumOfTheStream) {
    const Config config = read_config(SPEEDRUN_SOURCE_ROOT "/configs/124m_modern.json", {});
    const StepModel step = model_step(config, kAlone, find_gpu_model("h100"));
    const double microbatches = 8, row = 2.0 * 32768 * 768;
    double norms = 0, sums = 0, addends = 0;
    for (const ModelledOperation& operation : step.operations) {
        if (operation.name == "norm_forward") norms += operation.bytes;
        if (operation.name == "sum_norm_forward") sums += operation.bytes;
        if (operation.name.ends_with(" addend")) addends += operation.calls;
    }
    EXPECT_EQ(addends, 24 * microbatches);
    // The embedding's norm too, and a number per row of every norm.
    EXPECT_NEAR(norms, microbatches * 14 * 2 * row, 0.01 * norms);
    // In the first layer both terms are one tensor.
    EXPECT_NEAR(sums, microbatches * (12 * 4 - 1) * row, 0.01 * sums);
}

}  // namespace speedrun::testing::pointwise_bytes_test
