// The residual stream as the addend of the matmuls that end a sublayer.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/graph/program.h"
#include "train/model/nodes/fusions.h"
#include "train/model/nodes/linear.h"

namespace speedrun::testing::residual_test {

constexpr int64_t kLayers = 2, kRows = 3, kSequence = 16, kTokens = kRows * kSequence;

// Plain sums after both sublayers: the form without addends.
const ModelSettings kSeparate = {R"(model.layers.each.attention.after=[{"of": "stream"}, {"of": "output"}])",
                                 R"(model.layers.each.mlp.after=[{"of": "stream"}, {"of": "output"}])"};
const ModelSettings kFp8 = {
    R"(model.layers.each.mlp.up_fp8={"x": {"by": "amax"}, "weight": {"by": "amax"}})",
    R"(model.layers.each.mlp.down_fp8={"x": {"by": "amax"}, "weight": {"by": "amax"}})"};

ModelConfig model_with(const std::string& preset, const ModelSettings& more) {
    return model_of(preset, {.layers = kLayers, .width = 32, .heads = 2, .vocabulary = 40}, more);
}

struct Counted {
    int addends = 0, additions = 0, sublayers = 0;  // nodes; storages with the output of a sublayer
};

Counted count(const ModelConfig& model, const TensorSlice& tensor = {}) {
    const ModelGraph m = build_model(
        model, {.tokens = kTokens, .sequence_length = kSequence, .tensor = tensor}, {.logit_rows = kTokens});
    Counted counted;
    for (const auto& node : m.graph.nodes()) {
        const auto* const linear = dynamic_cast<const Linear*>(node.get());
        counted.addends += linear && linear->has_addend();
        counted.additions += node->kind() == std::string("add");
    }
    const Program program = derive_program(m.graph, model_fusions(),
                                           Retained(static_cast<size_t>(m.graph.num_units())), DType::bf16);
    for (const Storage& storage : program.storages)
        counted.sublayers += !storage.name.starts_with("gradient of ") &&
                             (storage.name.ends_with(".attn.out") || storage.name.ends_with(".mlp.down"));
    return counted;
}

TEST(ResidualTest, MatmulsAddToTheStream) {
    for (const ModelSettings& more : {ModelSettings{}, {kMix}, kFp8}) {
        const Counted counted = count(model_with("modern", more));
        EXPECT_EQ(counted.addends, 2 * kLayers);
        EXPECT_EQ(counted.additions, 0);
        EXPECT_EQ(counted.sublayers, 0);
    }
    // GPT-2 also adds its positions.
    EXPECT_EQ(count(model_with("gpt2", {})).addends, 2 * kLayers);
}

// Each rank's product is a term of the sum that the ranks add up, and each rank has the stream.
TEST(ResidualTest, RanksOfATensorAddTheStreamOnce) {
    for (const bool sequence : {false, true}) {
        const Counted counted =
            count(model_with("modern", {}), {.size = 2, .index = 1, .sequence = sequence});
        EXPECT_EQ(counted.addends, 0);
        EXPECT_EQ(counted.additions, 2 * kLayers);
    }
}

// A sum with factors needs the sublayer's output.
TEST(ResidualTest, SumsWithFactorsStaySums) {
    const Counted counted = count(model_with(
        "modern",
        {R"(model.layers.each.attention.after=[{"of": "stream", "scale": 1}, {"of": "output", "scale": 1}])"}));
    EXPECT_EQ(counted.addends, kLayers);
    EXPECT_EQ(counted.sublayers, kLayers);
}

struct Outcome {
    double loss;
    std::vector<Values> gradients;
};

Outcome outcome_of(const ModelConfig& model, const MemoryConfig& memory = {}) {
    ModelHarness harness(model, kTokens, kSequence, DType::f32, {}, memory);
    harness.randomize(0.3, 7);
    Outcome outcome{harness.backward(random_batch(model, kRows, kSequence, false, 3), 1.0f / kTokens), {}};
    for (const Parameter& p : harness.table().all()) outcome.gradients.push_back(harness.gradient(p));
    return outcome;
}

void expect_equal(const Outcome& actual, const Outcome& expected) {
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_GT(expected.loss, 0);
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < expected.gradients.size(); ++i)
        EXPECT_EQ(actual.gradients[i], expected.gradients[i]) << "parameter " << i;
}

// In f32 an addend is added last, so losses and gradients have the bits of separate sums. gpt2: with biases.
TEST(ResidualTest, HasTheBitsOfSeparateSums) {
    for (const char* preset : {"modern", "gpt2"}) {
        for (const ModelSettings& more : {ModelSettings{}, {kMix}, kFp8}) {
            if (more == kFp8 && preset == std::string("gpt2")) continue;  // FP8 matmuls have no bias
            SCOPED_TRACE(preset);
            expect_equal(outcome_of(model_with(preset, more)),
                         outcome_of(model_with(preset, together({more, kSeparate}))));
        }
    }
}

TEST(ResidualTest, RecomputedMatmulsAddToTheSameStream) {
    const ModelConfig model = model_with("modern", {kMix});
    MemoryConfig recomputing;
    recomputing.activation_checkpointing = Checkpointing::full;
    expect_equal(outcome_of(model, recomputing), outcome_of(model));
}

}  // namespace speedrun::testing::residual_test
