// Backward of QK-norm and rotary as part of attention's backward: which layers have it, and that gradients keep their bits.
#include <gtest/gtest.h>

#include <map>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun::testing::rotary_fusion_test {

constexpr int64_t kSequence = 8, kTokens = 2 * kSequence, kLayers = 3;

// Heads of 64. In the last layer, values are mixed.
ModelConfig model_with(const ModelSettings& more = {}) {
    return model_of("modern", {.layers = kLayers, .width = 128, .heads = 2, .vocabulary = 60},
                    together({{kMix}, with_tables({.layers = kLayers, .values = 1}), more}));
}

// Instructions of backward with rotary, by the kinds of their nodes.
using Counts = std::map<std::string, int>;
Counts rotary_of(const std::vector<Instruction>& backward) {
    Counts counts;
    for (const Instruction& step : backward) {
        std::string kinds;
        for (const NodeCall& call : step.calls)
            kinds += (kinds.empty() ? "" : " + ") + std::string(call.node->kind());
        if (step.kind == Instruction::Kind::backward && kinds.find("rotary") != std::string::npos)
            ++counts[kinds];
    }
    return counts;
}
const std::string kApart = "QK-norm, rotary", kFused = "QK-norm, rotary + attention";

Counts derived(const ModelConfig& config, const FusesRotary& fuses,
               const BatchShape& batch = {kTokens, kSequence}) {
    const ModelGraph m = build_model(config, batch, {.logit_rows = batch.local_tokens()});
    const Fusions fusions = model_fusions(fuses);
    return rotary_of(
        derive_program(m.graph, fusions, Retained(static_cast<size_t>(m.graph.num_units())), DType::f32)
            .backward);
}

bool always(HeadWidths /*widths*/) {
    return true;
}

TEST(RotaryFusionTest, FusesWhereAttentionReadsRotaryDirectly) {
    EXPECT_EQ(derived(model_with(), always), (Counts{{kFused, kLayers}}));
    EXPECT_EQ(derived(model_with(), {}), (Counts{{kApart, kLayers}}));
    const auto narrow = [](HeadWidths widths) { return widths.value_dim == 4; };
    EXPECT_EQ(derived(model_with({"model.layers.at.1.attention.v_head_dim=4"}), narrow),
              (Counts{{kFused, 1}, {kApart, kLayers - 1}}));
    // The key offset is between. Paired heads have results in other memory, here without a copy of v between.
    EXPECT_EQ(derived(model_with({"model.layers.at.1.attention.key_offset=true",
                                  R"(model.layers.at.1.attention.rotary={"fraction": 0.5})"}),
                      always),
              (Counts{{kFused, kLayers - 1}, {kApart, 1}}));
    EXPECT_EQ(derived(model_with({"model.layers.at.2.attention.paired=true"}), always),
              (Counts{{kFused, kLayers - 1}, {kApart, 1}}));
    // Another reader of v contributes to its gradient, which is added afterwards.
    EXPECT_EQ(derived(model_with({"model.layers.at.1.attention.exclude_own_value={}"}), always),
              (Counts{{kFused, kLayers}}));
    // Another reader of q and k is between.
    EXPECT_EQ(derived(model_with({R"(model.layers.at.1.attention.compose_heads={"keys": 4})"}), always),
              (Counts{{kFused, kLayers - 1}, {kApart, 1}}));
}

// Ranks that share rows exchange keys between rotary and attention.
TEST(RotaryFusionTest, KeyExchangeIsBetween) {
    BatchShape batch{kTokens, kSequence};
    batch.part = {.size = 2, .index = 0};
    EXPECT_EQ(derived(model_with(), always, batch), (Counts{{kApart, kLayers}}));
}

struct Outcome {
    double loss = 0;
    std::vector<Values> gradients;
    Counts rotary;
};

// Two microbatches on the CPU, in bf16.
Outcome run(const ModelConfig& config, Checkpointing checkpointing, bool fuses) {
    MemoryConfig memory;
    memory.activation_checkpointing = checkpointing;
    ModelHarness h(config, kTokens, kSequence, DType::bf16, {}, memory, fuses);
    h.randomize(0.2, 5);
    std::vector<Instruction> steps;
    h.model.watch([&](const Instruction* step) {
        if (step) steps.push_back(*step);
    });
    Outcome outcome;
    h.tracker.begin_step();
    for (const uint64_t seed : {1, 2})
        outcome.loss += h.backward(random_batch(config, kTokens / kSequence, kSequence, true, seed), 0.5F);
    for (const Parameter& p : h.table().all()) outcome.gradients.push_back(h.gradient(p));
    outcome.rotary = rotary_of(steps);
    return outcome;
}

TEST(RotaryFusionTest, GradientsKeepTheirBits) {
    const ModelSettings key_offset = {"model.layers.at.1.attention.key_offset=true",
                                      R"(model.layers.at.1.attention.rotary={"fraction": 0.5})"};
    const ModelSettings own_value = {"model.layers.at.1.attention.exclude_own_value={}"};
    for (const ModelSettings& more : {ModelSettings{}, own_value, key_offset}) {
        const int fused = 2 * static_cast<int>(more == key_offset ? kLayers - 1 : kLayers);
        for (const Checkpointing checkpointing :
             {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
            const Outcome apart = run(model_with(more), checkpointing, false),
                          together = run(model_with(more), checkpointing, true);
            EXPECT_EQ(apart.rotary, (Counts{{kApart, 2 * kLayers}}));
            EXPECT_EQ(together.rotary.at(kFused), fused);
            EXPECT_EQ(together.loss, apart.loss);
            EXPECT_EQ(together.gradients, apart.gradients);
            EXPECT_GT(largest_of(apart.gradients.back()), 0);
        }
    }
}

}  // namespace speedrun::testing::rotary_fusion_test
