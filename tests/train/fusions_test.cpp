// Fusion of residual sums with the norms after them. program_test shows that fusion does not change any bit.
#include "train/model/nodes/fusions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "train/config/config_json.h"
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
    Names fused(const std::vector<Step>& steps) const {
        Names found;
        int entered = -1;
        for (const Step& step : steps) {
            if (step.kind == Step::Kind::enter) entered = step.unit;
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
TEST(FusionsTest, JoinsAreFusedWithTheNormsBehindThem) {
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
TEST(FusionsTest, ANormWithAGainStaysInItsUnit) {
    const Joined joined(true);
    EXPECT_EQ(joined.fused(joined.program.forward),
              (Names{"smeared: 0 0", "blocks.0.after attn: 1 1", "blocks.1.after attn: 2 2",
                     "blocks.2.after attn: 3 3"}));
    EXPECT_EQ(joined.fused(joined.program.backward).size(), 3);
}

}  // namespace speedrun::testing::fusions_test
