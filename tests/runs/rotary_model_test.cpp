// Attention's backward with that of QK-norm and rotary in a modelled step: only where the modelled GPU has kernels for it.
// build: release
#include <fstream>
#include <map>

#include "tests/runs/run_fixture.h"
#include "train/engine/step_model.h"

namespace speedrun::testing::rotary_model_test {

const std::string kApart = "qk_norm_rotary_backward", kFused = "attention_backward qk_norm_rotary";

class RotaryModelTest : public RunFixture {
  protected:
    // Calls per operation.
    std::map<std::string, double> calls_of(int64_t heads, const std::string& attention,
                                           const char* gpu) const {
        const Config c = config({"precision=bf16", "model.model_dim=128", "cuda.attention=" + attention,
                                 fmt::format("model.layers.each.attention.heads={}", heads)});
        std::map<std::string, double> calls;
        for (const ModelledOperation& row : model_step(c, kAlone, find_gpu_model(gpu)).operations)
            calls[row.name] = row.calls;
        return calls;
    }
};

TEST_F(RotaryModelTest, FollowsKernelsOfTheGpu) {
    const auto apart = calls_of(2, "hand", "h100");
    ASSERT_GT(apart.at(kApart), 0);
    EXPECT_EQ(apart.count(kFused), 0u);
    auto fused = calls_of(2, "wgmma", "h100");
    EXPECT_EQ(fused.at(kFused), apart.at(kApart));
    EXPECT_EQ(fused.count(kApart) + fused.count("attention_backward"), 0u);
    // No kernels by wgmma: another GPU, and heads of 32.
    EXPECT_EQ(calls_of(2, "wgmma", "a100"), apart);
    EXPECT_EQ(calls_of(4, "wgmma", "h100"), calls_of(4, "hand", "h100"));
}

TEST_F(RotaryModelTest, TakesTimePerBlock) {
    const GpuModel& gpu = find_gpu_model("h100");
    const KernelModel kernel = kernel_model("attention_backward", {.wgmma_attention = true});
    OpCost cost;
    cost.op = "attention_backward";
    for (const int64_t head_dim : {64, 96, 128}) {
        cost.attention = {.sequences = 4,
                          .queries = 1024,
                          .keys = 1024,
                          .num_heads = 6,
                          .head_dim = head_dim,
                          .value_dim = head_dim};
        const AttentionTiming* const timing = attention_timing(cost, DType::bf16, kernel);
        ASSERT_TRUE(timing);
        // Documents do not change the time of the epilogue.
        for (const double visible : {1.0, 0.5}) {
            const AttentionWork work{.tiles = 1000, .blocks = 132, .visible = visible};
            const auto ms = [&](bool rotary) {
                cost.rotary = rotary;
                return model_call(cost, DType::bf16, gpu, kernel, 0, work).ms;
            };
            EXPECT_NEAR(ms(true) - ms(false), timing->rotary_us * 1e-3, 1e-9);
            EXPECT_GT(timing->rotary_us, 0.5);
        }
    }
}

// A report's case with rotary is for calls with rotary. Without one, such a call uses a case without.
TEST_F(RotaryModelTest, ReadsReportedCases) {
    const std::string path = (folder_ / "ops.jsonl").string();
    const auto nearest = [&](bool rotary) {
        OpCost cost;
        cost.op = "attention_backward";
        cost.flops = cost.bytes = 10;
        cost.rotary = rotary;
        return MeasuredKernels(path, DType::bf16, {.wgmma_attention = true}).nearest(cost)->name;
    };
    const auto line = [](const char* name) {
        return fmt::format(
            R"({{"kind":"op","name":"{}","op":"attention_backward","dtype":"bf16","status":"passed",)"
            R"("attention":"wgmma","flops":9,"bytes":9,"share_of_floor":0.5}})"
            "\n",
            name);
    };
    const std::string plain = "attention.recipe.backward", rotary = "attention.recipe.rotary.backward";
    std::ofstream(path) << line(plain.c_str());
    EXPECT_EQ(nearest(true), plain);
    std::ofstream(path) << line(plain.c_str()) << line(rotary.c_str());
    EXPECT_EQ(nearest(true), rotary);
    EXPECT_EQ(nearest(false), plain);
}

}  // namespace speedrun::testing::rotary_model_test
