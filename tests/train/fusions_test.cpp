// Fusion of residual sums with the norms after them. program_test shows that fusion does not change any bit.
#include "train/model/nodes/fusions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/graph/program.h"

namespace speedrun::testing::fusions_test {

using Names = std::vector<std::string>;

// Three layers with sums of learned factors, two of them with a number per token of a network, after a smear.
struct Joined {
    explicit Joined(bool gain)
        : model(build_model(config(gain), {.tokens = 8, .sequence_length = 8}, {.logit_rows = 8})),
          program(derive_program(model.graph, fusions, Retained(static_cast<size_t>(model.graph.num_units())),
                                 DType::f32)) {}

    static ModelConfig config(bool gain) {
        return parse_config(R"({"model": {"preset": "none", "model_dim": 32, "vocab_size": 60,
            "tables": {"embed": {}},
            "networks": {"late": {"input": "after 0"}},
            "input": [{"type": "table", "table": "embed"}, {"type": "smear"}, {"type": "norm"}],
            "layers": {"count": 3,
                "each": {"attention": {"heads": 2, "after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 1}, {"of": "first", "network": "late"}]},
                         "mlp": {"after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 1}]}},
                "at": {"0": {"attention": {"after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 1}, {"of": "first", "scale": 0.05}]}}}},
            "output": [{"type": "norm"}], "head": {}},
            "batch": {"sequence_length": 8, "microbatch_tokens": 8, "tokens_per_step": 8},
            "optimizers": {"groups": [{"params": ["*"]}]}})",
                            "test", {fmt::format("model.norms.gain={}", gain)})
            .model;
    }

    // Sums fused with their norm, each with the unit entered last and the unit of the norm.
    Names fused(const std::vector<Instruction>& steps) const {
        Names found;
        int entered = -1;
        for (const Instruction& step : steps) {
            if (step.kind == Instruction::Kind::enter) entered = step.unit;
            if (!step.fusion || step.calls.size() != 2) continue;
            const Node &sum = *step.calls[0].node, &norm = *step.calls[1].node;
            if (std::string(sum.kind()) != "weighted sum" || std::string(norm.kind()) != "norm") continue;
            found.push_back(fmt::format("{}: {} {}", model.graph[sum.writes().front().value].name, entered,
                                        model.graph.unit_of(norm)));
        }
        return found;
    }

    Fusions fusions = model_fusions();
    ModelGraph model;
    Program program;
};

// The first norm of a block is fused with the sum at the end of the block before, in forward and backward. After
// block 0 a network separates the two. The smear reads the previous token's row and is fused in forward only.
TEST(FusionsTest, FusesSumsWithFollowingNorms) {
    const Joined joined(false);
    const Names forward = joined.fused(joined.program.forward);
    EXPECT_EQ(forward,
              (Names{"smeared: 0 0", "blocks.0.after attn: 1 1", "blocks.1.after attn: 2 2",
                     "blocks.1.after mlp: 2 3", "blocks.2.after attn: 3 3", "blocks.2.after mlp: 3 4"}));
    Names backward = joined.fused(joined.program.backward);
    std::reverse(backward.begin(), backward.end());
    EXPECT_EQ(backward, Names(forward.begin() + 1, forward.end()));
}

// A norm's gain is a parameter of its own block, which must be entered before the gain is read.
TEST(FusionsTest, NormWithGainStaysInItsUnit) {
    const Joined joined(true);
    EXPECT_EQ(joined.fused(joined.program.forward),
              (Names{"smeared: 0 0", "blocks.0.after attn: 1 1", "blocks.1.after attn: 2 2",
                     "blocks.2.after attn: 3 3"}));
    EXPECT_EQ(joined.fused(joined.program.backward).size(), 3);
}

std::string kinds_of(const Instruction& step) {
    std::string kinds;
    for (const NodeCall& call : step.calls)
        kinds += (kinds.empty() ? "" : ", ") + std::string(call.node->kind());
    return kinds;
}

// Fused: a mix with the next norm; the first linear of an MLP with relu², and in backward relu² with the second. In blocks with value
// embeddings also the mix of values, QK-norm and rotary. With tensor parallelism a sum with the next norm, too, or mix and norm, in
// every block and before the head.
TEST(FusionsTest, FusesNeighboursOfModel) {
    const ModelConfig model =
        model_of("modern", {.layers = 3}, together({{kMix}, with_tables({.layers = 3, .values = 2})}));
    const Fusions fusions = model_fusions();
    const auto expect_fused = [&](const TensorSlice& tensor, const std::map<std::string, int>& forward,
                                  const std::map<std::string, int>& backward) {
        const ModelGraph m =
            build_model(model, {.tokens = 8, .sequence_length = 8, .tensor = tensor}, {.logit_rows = 8});
        const Program program =
            derive_program(m.graph, fusions, Retained(static_cast<size_t>(m.graph.num_units())), DType::f32);
        const auto fused = [](const std::vector<Instruction>& steps) {
            std::map<std::string, int> counts;
            for (const Instruction& step : steps)
                if (step.fusion) ++counts[kinds_of(step)];
            return counts;
        };
        EXPECT_EQ(fused(program.forward), forward);
        EXPECT_EQ(fused(program.backward), backward);
    };
    expect_fused({},
                 {{"weighted sum, norm", 3}, {"weighted sum, QK-norm, rotary", 2}, {"linear, activation", 3}},
                 {{"weighted sum, norm", 3}, {"activation, linear", 3}});
    // Block 0 has only the embedding as its input.
    expect_fused({.size = 2, .index = 0},
                 {{"add, norm", 3 + 1},
                  {"add, weighted sum, norm", 2},
                  {"weighted sum, norm", 1},
                  {"weighted sum, QK-norm, rotary", 2},
                  {"linear, activation", 3}},
                 {{"weighted sum, norm", 3}, {"activation, linear", 3}, {"redistribution, linear", 6}});
}

}  // namespace speedrun::testing::fusions_test
