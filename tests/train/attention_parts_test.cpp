// Attention options against a float64 model written as plain loops: losses, and gradients by finite differences.
// Covers: train/model/parts/*.cpp
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <numeric>
#include <ostream>
#include <random>

#include "tests/errors.h"
#include "tests/train/plain_attention.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"

namespace speedrun::testing::attention_parts_test {

using ::testing::HasSubstr;

constexpr int64_t kRows = 2, kSequence = 11;

// Three layers: plain values, values mixed with a table, scaled values. The second attends to its whole document.
ModelConfig model_with(const std::string& parts_of_each, int heads = 6,
                       const std::vector<std::string>& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 48, "vocab_size": 30, "norms": {"epsilon": 0.001},
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "values": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {
                "count": 3,
                "each": {"attention": {"heads": )" +
                            std::to_string(heads) +
                            R"(, "window": "5", "rotary": {"base": 100, "fraction": 0.5})" + parts_of_each +
                            R"(}, "mlp": null},
                "at": {"1": {"attention": {"value_table": "values", "window": "0"}},
                       "2": {"attention": {"value_scale": true, "scale": 0.2}}}},
            "output": [{"type": "norm"}],
            "head": {"softcap": 0}},
        "batch": {"sequence_length": 11, "microbatch_tokens": 22, "tokens_per_step": 22},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings)
        .model;
}

struct Case {
    const char *name, *parts;
    int heads = 6;
    std::vector<std::string> settings = {};
    friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class AttentionPartsTest : public ::testing::TestWithParam<Case> {
  protected:
    AttentionPartsTest()
        : model_(model_with(GetParam().parts, GetParam().heads, GetParam().settings)),
          batch_(random_batch(model_, kRows, kSequence, true, 3)),
          plain_(model_, batch_, kSequence) {}

    void take_parameters(ModelHarness& h) {
        for (const Parameter& p : h.table().all())
            plain_.parameters[p.name] = h.read(h.model.parameters().master(p));
    }

    const ModelConfig model_;
    const HostBatch batch_;
    PlainModel plain_;
};

INSTANTIATE_TEST_SUITE_P(
    Parts, AttentionPartsTest,
    ::testing::Values(
        Case{"none", ""}, Case{"exclude_own_value", R"(, "exclude_own_value": {})"},
        Case{"compose_heads", R"(, "compose_heads": {"keys": 4})"},
        Case{"compose_offset_heads", R"(, "compose_heads": {}, "key_offset": true, "exclude_own_value": {})"},
        Case{"key_offset", R"(, "key_offset": true)"}, Case{"paired", R"(, "paired": true)"},
        Case{"paired_exclude_own_value", R"(, "paired": true, "exclude_own_value": {})"},
        Case{"four_paired", R"(, "paired": true)", 4},
        // Sizes of heads of q and k, and of v, which are 8 by default.
        Case{"narrow_qk", R"(, "qk_head_dim": 4)"},
        Case{"wide_qk_narrow_v",
             R"(, "qk_head_dim": 12, "v_head_dim": 4, "key_offset": true, "exclude_own_value": {})"},
        Case{"paired_narrow_qk", R"(, "qk_head_dim": 4, "v_head_dim": 10, "paired": true)"},
        // Layer 2 reads the first columns of each head of rows that layer 1 reads whole.
        Case{"cut_rows",
             R"(, "v_head_dim": 10)",
             6,
             {"model.layers.at.2.attention.value_scale=false",
              "model.layers.at.2.attention.value_table=values", "model.layers.at.2.attention.v_head_dim=4"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Tolerance: some tens of successive f32 roundings of 6e-8, for losses of 3 to 10 nats.
TEST_P(AttentionPartsTest, LossesMatchFloat64Model) {
    ModelHarness h(model_, kRows * kSequence, kSequence);
    h.randomize(0.3, 11);
    take_parameters(h);
    h.forward_loss(batch_);
    const Values losses = h.read(h.model.losses()), expected = plain_.losses();
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t t = 0; t < losses.size(); ++t) EXPECT_NEAR(losses[t], expected[t], 3e-5) << "token " << t;
}

// Central differences in float64 err by about 1e-9, so f32 rounding of the gradient dominates.
TEST_P(AttentionPartsTest, GradientsMatchFiniteDifferences) {
    ModelHarness h(model_, kRows * kSequence, kSequence);
    h.randomize(0.3, 11);
    take_parameters(h);
    h.tracker.begin_step();
    h.backward(batch_, 1);
    std::mt19937_64 random(17);
    std::normal_distribution<double> normal;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = h.gradient(p), start = plain_.parameters.at(p.name);
        ASSERT_GT(norm_of(gradient), 0) << p.name;
        for (int trial = 0; trial < 3; ++trial) {
            Values direction(start.size());
            for (double& e : direction) e = normal(random);
            const auto loss_at = [&](double step) {
                Values& moved = plain_.parameters.at(p.name);
                for (size_t i = 0; i < start.size(); ++i) moved[i] = start[i] + step * direction[i];
                const Values losses = plain_.losses();
                moved = start;
                return std::accumulate(losses.begin(), losses.end(), 0.0);
            };
            const double difference = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5,
                         given = std::inner_product(gradient.begin(), gradient.end(), direction.begin(), 0.0);
            EXPECT_NEAR(given, difference, 1e-4 * norm_of(gradient) + 1e-5)
                << p.name << ", gradient of norm " << norm_of(gradient);
        }
    }
}

// Layer table of the graph, as `plan` prints it.
std::vector<std::string> nodes_of(const ModelGraph& written) {
    std::vector<std::string> nodes;
    for (const speedrun::Layer& layer : layer_table(written.graph))
        nodes.push_back(fmt::format("{}", fmt::join(layer.nodes, "; ")));
    return nodes;
}
ModelGraph graph_of(const std::string& parts_of_each) {
    return build_model(model_with(parts_of_each), {.tokens = 22, .sequence_length = 11}, {.logit_rows = 22});
}

// Applied after attention and before the gate. v includes its table or its factor, which the projection applies.
TEST(AttentionGraph, ExcludesOwnValueBeforeGate) {
    const ModelGraph written = graph_of(R"(, "exclude_own_value": {"start": 0.25}, "gate": {"columns": 6})");
    const Parameter& share = written.table.find("blocks.1.attn.own_value");
    EXPECT_EQ(share.shape, (std::vector<int64_t>{6}));
    EXPECT_EQ(share.init.value, 0.25F);
    const std::vector<std::string> nodes = nodes_of(written);
    const char* const values[] = {"v", "mixed v", "v"};
    for (size_t layer = 0; layer < 3; ++layer)
        EXPECT_THAT(
            nodes[layer + 1],
            HasSubstr(fmt::format(
                "attn_out without its share of {}; sum of attn.gate x attn_out without own value; linear",
                values[layer])));
    EXPECT_FALSE(graph_of("").table.contains("blocks.1.attn.own_value"));
}

// One scalar per head with a configured start value. The composed maps are added to the output first.
TEST(AttentionGraph, ComposesHeadsBeforeOwnValueAndGate) {
    const ModelGraph written = graph_of(
        R"(, "compose_heads": {"keys": 7, "output_start": 0.5}, "exclude_own_value": {}, "gate": {"columns": 6})");
    for (const auto& [name, start] : {std::pair{"maps", 1.0F}, std::pair{"output", 0.5F}}) {
        const Parameter& weights = written.table.find(fmt::format("blocks.1.attn.composed_{}", name));
        EXPECT_EQ(weights.shape, (std::vector<int64_t>{6}));
        EXPECT_EQ(weights.init.value, start);
    }
    const std::vector<std::string> nodes = nodes_of(written);
    for (size_t layer = 1; layer < 4; ++layer) {
        EXPECT_THAT(nodes[layer], HasSubstr("composed heads 6 x 8, 7 keys; attention"));
        EXPECT_THAT(nodes[layer],
                    HasSubstr("attn_out + composed heads; attn_out with composed heads without its share"));
    }
    EXPECT_FALSE(graph_of("").table.contains("blocks.1.attn.composed_maps"));
}

TEST(AttentionGraph, RejectsInvalidComposeHeads) {
    const auto refusal = [](const std::string& parts) -> std::string {
        return error_of(ExitCode::usage, [&] { model_with(parts); });
    };
    EXPECT_THAT(refusal(R"(, "paired": true, "compose_heads": {})"),
                HasSubstr("attention.compose_heads: not with paired"));
    EXPECT_THAT(refusal(R"(, "compose_heads": {"maps_start": 0})"),
                HasSubstr("compose_heads.maps_start is 0"));
    EXPECT_THAT(refusal(R"(, "compose_heads": {"keys": 257})"),
                HasSubstr("compose_heads.keys: 257 is outside [1, 256]"));
}

// q and k of 6 heads of 4, v of 6 heads of 10: 24 + 24 + 60 rows. A layer that reads narrower rows copies them.
TEST(AttentionGraph, HeadSizesSetTheShapesOfMatrices) {
    const ModelConfig model = model_with(
        R"(, "qk_head_dim": 4, "v_head_dim": 10)", 6,
        {"model.layers.at.2.attention.value_scale=false", "model.layers.at.2.attention.value_table=values",
         "model.layers.at.2.attention.v_head_dim=4"});
    const ModelGraph written = build_model(model, {.tokens = 22, .sequence_length = 11}, {.logit_rows = 22});
    EXPECT_EQ(written.table.find("blocks.0.attn.qkv.weight").stacks(), (std::vector<int64_t>{24, 24, 60}));
    EXPECT_EQ(written.table.find("blocks.0.attn.qkv.weight").shape, (std::vector<int64_t>{108, 48}));
    EXPECT_EQ(written.table.find("blocks.0.attn.out.weight").shape, (std::vector<int64_t>{48, 60}));
    EXPECT_EQ(written.table.find("blocks.2.attn.qkv.weight").shape, (std::vector<int64_t>{72, 48}));
    EXPECT_EQ(written.table.find("values.weight").shape, (std::vector<int64_t>{64, 60}));
    const std::vector<std::string> nodes = nodes_of(written);
    EXPECT_THAT(nodes[1], HasSubstr("attention 6 x 4/10, window 5, within documents"));
    EXPECT_EQ(nodes[2].find("columns of"), std::string::npos);
    EXPECT_THAT(nodes[3], HasSubstr("first 4 of 10 columns of 6 heads of value_embedding"));
    EXPECT_THAT(nodes[3], HasSubstr("attention 6 x 4, window 5, scale 0.2"));
}

TEST(AttentionGraph, RejectsInvalidHeadSizes) {
    const auto refusal = [](const std::string& parts, int heads = 6,
                            const std::vector<std::string>& settings = {}) -> std::string {
        return error_of(ExitCode::usage, [&] { model_with(parts, heads, settings); });
    };
    EXPECT_THAT(refusal("", 5), HasSubstr("attention.heads 5 does not divide model.model_dim 48: "
                                          "set another number of heads, or both qk_head_dim and v_head_dim"));
    EXPECT_THAT(refusal(R"(, "qk_head_dim": 8)", 5), HasSubstr("heads 5 does not divide model.model_dim 48"));
    EXPECT_EQ(refusal(R"(, "qk_head_dim": 8, "v_head_dim": 10)", 5), "accepted");
    EXPECT_THAT(refusal(R"(, "qk_head_dim": 5)"),
                HasSubstr("attention.rotary needs an even head size, not 5: set qk_head_dim to 6"));
    EXPECT_THAT(refusal(R"(, "v_head_dim": 4097)"), HasSubstr("v_head_dim: 4097 is outside [0, 4096]"));
    EXPECT_THAT(
        refusal(R"(, "qk_head_dim": 4, "compose_heads": {})"),
        HasSubstr("compose_heads: heads of q and k have 4 dimensions and heads of v 8: set qk_head_dim and "
                  "v_head_dim to one value"));
    EXPECT_THAT(
        refusal(R"(, "v_head_dim": 4, "values": [{"of": "input"}])"),
        HasSubstr(
            "attention.values: the terms have model.model_dim 48 columns, but v has 6 heads of 4 dimensions"));
    EXPECT_THAT(refusal("", 6,
                        {R"(model.layers.at.1.attention.value_gate={"columns": 13})",
                         "model.layers.at.1.attention.v_head_dim=2"}),
                HasSubstr("value_gate.columns 13 exceeds the 12 columns of rows of \"values\""));
    const std::string added =
        R"(model.output=[{"type": "sum", "terms": [{"of": "stream"}, {"table": "values"}]}, {"type": "norm"}])";
    EXPECT_THAT(refusal("", 6, {added, "model.layers.at.1.attention.v_head_dim=10"}),
                HasSubstr("layer 1: attention.value_table: rows of \"values\" have 48 columns"));
    EXPECT_EQ(refusal("", 6, {added, "model.layers.at.1.attention.v_head_dim=4"}), "accepted");
}

// The previous token's key is used after rotary and QK-norm. Two of four pairs rotate.
TEST(AttentionGraph, OffsetsKeysAfterRotary) {
    const std::vector<std::string> nodes = nodes_of(graph_of(R"(, "key_offset": true)"));
    for (const size_t layer : {1U, 2U, 3U})
        EXPECT_THAT(nodes[layer], HasSubstr("2 of 4 pairs of k of the token before; attention"));
    EXPECT_EQ(nodes_of(graph_of("")).at(1).find("token before"), std::string::npos);
}

// Each token has two positions: tables have twice the length and are shared by the layers.
TEST(AttentionGraph, PairedHeadsDoubleSequenceLength) {
    const ModelGraph written = graph_of(R"(, "paired": true)");
    std::vector<int64_t> lengths;
    int64_t ids = 0;
    for (const Value& value : written.graph.values()) {
        if (value.name == "rotary cos") lengths.push_back(value.extents[0].size);
        if (!value.name.ends_with("of pairs")) continue;
        ++ids;
        EXPECT_EQ(value.extents[0].size, 22);
        EXPECT_EQ(value.extents[1].size, 2);
    }
    EXPECT_EQ(lengths, (std::vector<int64_t>{22}));
    EXPECT_EQ(ids, 2);
    EXPECT_EQ(graph_of("").inputs.size(), 4u) << "no column of pairs";
    // Rotary writes q and k to memory of their own, as the sum writes mixed values.
    const char* const copies[] = {
        "linear 48 -> 144; QK-norm, rotary 6 x 8, 2 of 4 pairs, epsilon 0.001; copy of v; attention 3 pairs x 8, window 5",
        "attention 3 pairs x 8, within", "c x the last 48; QK-norm"};
    const std::vector<std::string> nodes = nodes_of(written);
    for (size_t layer = 0; layer < 3; ++layer) EXPECT_THAT(nodes[layer + 1], HasSubstr(copies[layer]));
    EXPECT_EQ(nodes[2].find("copy of"), std::string::npos);
    for (const std::string& node : nodes) {
        EXPECT_EQ(node.find("copy of q"), std::string::npos);
        EXPECT_EQ(node.find("copy of k"), std::string::npos);
    }
    // Without rotary and norm there is nothing that could write them elsewhere.
    const ModelConfig plain =
        model_with(R"(, "paired": true, "qk_norm": false)", 6, {"model.layers.each.attention.rotary=null"});
    EXPECT_THAT(nodes_of(build_model(plain, {.tokens = 22, .sequence_length = 11}, {.logit_rows = 22}))[1],
                HasSubstr("copy of projected q; copy of projected k; copy of v"));
}

// The factor of v multiplies rows of the projection's weight: no pass over v.
TEST(AttentionGraph, ScalesValuesInTheProjection) {
    const std::vector<std::string> nodes = nodes_of(graph_of(""));
    EXPECT_THAT(nodes[3], HasSubstr("linear 48 -> 144, c x the last 48; QK-norm"));
    for (const std::string& node : nodes) EXPECT_EQ(node.find("sum of c0 x v;"), std::string::npos);
}

}  // namespace speedrun::testing::attention_parts_test
