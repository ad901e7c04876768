// FLOPs and bytes of nodes: by hand for a matmul; the sum equals the step's count with any recomputation.
// build: release
#include "train/engine/node_work.h"

#include <algorithm>

#include "tests/runs/run_fixture.h"

namespace speedrun::testing::node_work_test {

class NodeWorkTest : public RunFixture {
  protected:
    static const NodeWork& row(const std::vector<NodeWork>& rows, const std::string& name) {
        const auto found =
            std::find_if(rows.begin(), rows.end(), [&](const NodeWork& r) { return r.name == name; });
        if (found == rows.end()) throw_internal("no row {}", name);
        return *found;
    }
    static NodeWork::Pass sum(const std::vector<NodeWork>& rows) {
        NodeWork::Pass sum;
        for (const NodeWork& r : rows) {
            sum.flops += r.forward.flops + r.backward.flops;
            sum.bytes += r.forward.bytes + r.backward.bytes;
        }
        return sum;
    }
};

// Two layers of width 32, two microbatches of 512 tokens, in f32: QKV takes 2 T 32 96 FLOPs, and two such matmuls in backward.
TEST_F(NodeWorkTest, AProductByHand) {
    const std::vector<NodeWork> rows = node_work(config({"batch.tokens_per_step=1024"}), {});
    const NodeWork& qkv = row(rows, "linear 32 -> 96");
    constexpr int64_t kTokens = 512, kMicrobatches = 2, kLayers = 2, kIn = 32, kOut = 96, kBytes = 4;
    EXPECT_EQ(qkv.forward.steps, kLayers * kMicrobatches);
    EXPECT_EQ(qkv.backward.steps, kLayers * kMicrobatches);
    EXPECT_EQ(qkv.forward.flops, kLayers * kMicrobatches * 2 * kTokens * kIn * kOut);
    EXPECT_EQ(qkv.backward.flops, 2 * qkv.forward.flops);
    EXPECT_EQ(qkv.forward.bytes,
              kLayers * kMicrobatches * kBytes * (kTokens * kIn + kIn * kOut + kTokens * kOut));
    EXPECT_EQ(row(rows, "rmsnorm").forward.flops, 0);
    EXPECT_GT(row(rows, "rmsnorm").forward.bytes, 0);
}

TEST_F(NodeWorkTest, SumsToTheWorkOfAStep) {
    for (const char* checkpointing : {"none", "selective", "full"}) {
        for (const char* family : {"modern", "gpt2"}) {
            Config c = config({std::string("model.preset=") + family,
                               std::string("memory.activation_checkpointing=") + checkpointing});
            if (std::string(family) == "gpt2")
                c.optimizers.groups[0].params = {"blocks.*.attn.*.weight", "blocks.*.mlp.*.weight"};
            const MemoryPlan plan = plan_memory(c);
            EXPECT_EQ(sum(node_work(c, {})).flops, plan.work[0].flops + plan.work[0].recomputed_flops)
                << family << " " << checkpointing;
        }
    }
}

// Recomputation counts as backward: of the first of the two layers only, as the last one is still stored when backward begins.
TEST_F(NodeWorkTest, RepeatedWorkIsOfBackward) {
    const auto of = [&](const char* checkpointing) {
        return node_work(config({std::string("memory.activation_checkpointing=") + checkpointing}), {});
    };
    const NodeWork none = row(of("none"), "linear 32 -> 96"), full = row(of("full"), "linear 32 -> 96");
    EXPECT_EQ(full.forward.flops, none.forward.flops);
    EXPECT_EQ(full.backward.flops, none.backward.flops + none.forward.flops / 2);
    EXPECT_EQ(full.backward.steps, none.backward.steps + 1);
}

}  // namespace speedrun::testing::node_work_test
