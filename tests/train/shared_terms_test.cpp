// Terms of weighted sums with the same values: which sums form a group, and where its gradients are computed.
#include "train/model/graph/shared_terms.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <string>
#include <vector>

#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/program.h"
#include "train/model/nodes/fusions.h"

namespace speedrun::testing::shared_terms_test {

using Names = std::vector<std::string>;

// Each layer adds the first row and a row of a table, with numbers of the network `early`; from layer `late` on of a
// network that reads the output of the layer before. Other columns of `early` gate attention between these sums.
ModelGraph model_with(int layers, int late, const std::string& terms) {
    const auto after = [&](const std::string& network) {
        std::string text = R"([{"of": "stream", "scale": 1}, {"of": "output", "scale": 1})";
        for (const char term : terms)
            text +=
                fmt::format(R"(, {{{}, "network": "{}"}})",
                            term == 'f' ? R"("of": "first")" : R"("table": "rows", "scale": 0.5)", network);
        return text + "]";
    };
    std::string at;
    for (int layer = late; layer < layers; ++layer)
        at += fmt::format(R"({}"{}": {{"attention": {{"after": {}}}}})", at.empty() ? "" : ", ", layer,
                          after("late"));
    const std::string networks =
        late < layers ? fmt::format(R"("late": {{"input": "after {}"}}, )", late - 1) : std::string();
    return build_model(parse_config(fmt::format(
                                        R"({{"model": {{"preset": "none", "model_dim": 32, "vocab_size": 60,
                   "tables": {{"embed": {{}}{}}},
                   "networks": {{{}"early": {{}}}},
                   "input": [{{"type": "table", "table": "embed"}}, {{"type": "norm"}}],
                   "layers": {{"count": {},
                       "each": {{"attention": {{"heads": 2, "gate": {{"network": "early", "start": 0.25}}, "after": {}}},
                                 "mlp": {{"after": [{{"of": "stream", "scale": 1}}, {{"of": "output", "scale": 1}}]}}}},
                       "at": {{{}}}}},
                   "output": [{{"type": "norm"}}], "head": {{}}}},
                   "batch": {{"sequence_length": 8, "microbatch_tokens": 8, "tokens_per_step": 8}},
                   "optimizers": {{"groups": [{{"params": ["*"]}}]}}}})",
                                        terms.find('t') == std::string::npos ? "" : R"(, "rows": {})",
                                        networks, layers, after("early"), at),
                                    "test", {})
                           .model,
                       {.tokens = 8, .sequence_length = 8}, {.logit_rows = 8});
}

// The sums of each shared operation, in order of backward.
std::vector<Names> shared(const ModelGraph& model) {
    const Fusions fusions = model_fusions();
    const Program program = derive_program(
        model.graph, fusions, Retained(static_cast<size_t>(model.graph.num_units())), DType::f32);
    std::vector<Names> found;
    for (const Instruction& step : program.backward) {
        if (step.kind != Instruction::Kind::shared) continue;
        found.emplace_back();
        for (const NodeCall& call : step.calls)
            found.back().push_back(model.graph[call.node->writes().front().value].name);
    }
    return found;
}

Names sums(int first, int last) {
    Names names;
    for (int layer = first; layer >= last; --layer)
        names.push_back(fmt::format("blocks.{}.after attn", layer));
    return names;
}

TEST(SharedTermsTest, EndsBeforeTheNetworkOfItsCoefficients) {
    EXPECT_EQ(shared(model_with(7, 4, "ft")), (std::vector<Names>{sums(6, 4), sums(3, 1)}));
}

// At most eight sums have one operation, and at least two.
TEST(SharedTermsTest, LimitsItsSums) {
    EXPECT_EQ(shared(model_with(11, 11, "ft")), (std::vector<Names>{sums(10, 3), sums(2, 1)}));
    EXPECT_EQ(shared(model_with(10, 10, "ft")), (std::vector<Names>{sums(9, 2)}));
    EXPECT_EQ(shared(model_with(4, 3, "ft")), (std::vector<Names>{sums(2, 1)}));
}

// A sum that reads the value by another term too: the stream of block 0 is the first row itself.
TEST(SharedTermsTest, LeavesOutSumsThatReadTheValueTwice) {
    EXPECT_EQ(shared(model_with(3, 3, "ft")), (std::vector<Names>{sums(2, 1)}));
    EXPECT_TRUE(shared(model_with(2, 2, "ft")).empty());
}

// With a single source, the pass over the gradients of the sums would cost as much as it saves.
TEST(SharedTermsTest, NeedsTwoSources) {
    EXPECT_TRUE(shared(model_with(4, 4, "f")).empty());
}

// The gradients of the sums of a group are stored until its operation has read them.
TEST(SharedTermsTest, KeepsGradientsOfItsSums) {
    const ModelGraph model = model_with(4, 4, "ft");
    const Fusions fusions = model_fusions();
    const Program program = derive_program(
        model.graph, fusions, Retained(static_cast<size_t>(model.graph.num_units())), DType::f32);
    for (const Instruction& step : program.backward) {
        if (step.kind != Instruction::Kind::shared) continue;
        std::vector<int> kept;
        for (const NodeCall& call : step.calls) {
            kept.push_back(call.written_gradients.front().storage);
            EXPECT_GE(program.storages[static_cast<size_t>(kept.back())].last, step.number);
        }
        std::sort(kept.begin(), kept.end());
        EXPECT_EQ(std::unique(kept.begin(), kept.end()), kept.end()) << "two sums have one gradient";
    }
}

}  // namespace speedrun::testing::shared_terms_test
