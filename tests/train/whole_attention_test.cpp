// Attention layers that tensor ranks compute whole, and their propagation through value tables.
#include "train/model/parts/attention.h"

#include <gtest/gtest.h>

#include "train/config/config_json.h"

namespace speedrun::testing::whole_attention_test {

// layers: model.layers.at of six layers; output: model.output.
ModelParts parts_of(const std::string& layers, const std::string& output = R"([{"type": "norm"}])") {
    return parse_config(R"({"model": {"preset": "none", "model_dim": 32, "vocab_size": 64,
                            "tables": {"embed": {}, "a": {}, "b": {}}, "networks": {"n": {}},
                            "input": [{"type": "table", "table": "embed"}],
                            "layers": {"count": 6, "each": {"attention": {"gate": {"network": "n"}}}, "at": )" +
                            layers + R"(}, "output": )" + output + R"(},
                            "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", {})
        .model.parts;
}
constexpr const char* kReads =
    R"("2": {"attention": {"value_table": "a"}}, "3": {"attention": {"value_table": "a"}},
                                  "4": {"attention": {"value_table": "b"}}, "5": {"attention": {"value_table": "b"}})";

TEST(WholeAttentionTest, IsWhatMixesHeadsOrReadsWholeRows) {
    const WholeAttention whole = whole_attention(parts_of(
        R"({"0": {"attention": {"paired": true}}, "2": {"attention": {"paired": true}},
            "3": {"attention": {"compose_heads": {}, "values": [{"of": "input", "scale": 0}], "value_table": "a", "value_gate": {}}},
            "4": {"attention": {"key_offset": true, "rotary": {"fraction": 0.5}, "exclude_own_value": {}, "reads": "after 1"}},
            "5": {"attention": {"value_table": "b"}}})"));
    EXPECT_EQ(whole.describe(),
              "attention of layers 0, 2 (paired), 3 (compose_heads, value_gate, values), table a");
}

TEST(WholeAttentionTest, NothingOfIt) {
    const WholeAttention whole = whole_attention(parts_of(fmt::format("{{{}}}", kReads)));
    EXPECT_TRUE(whole.layers.empty());
    EXPECT_TRUE(whole.tables.empty());
}

// The layer that requires whole attention may precede or follow the layers that share its table.
TEST(WholeAttentionTest, AllThatReadATableAreWholeIfOneIs) {
    for (const char* number : {"2", "3"}) {
        std::string layers = kReads;
        const std::string plain = fmt::format(R"("{}": {{"attention": {{)", number);
        layers.insert(layers.find(plain) + plain.size(), R"("value_gate": {}, )");
        const WholeAttention whole = whole_attention(parts_of("{" + layers + "}"));
        EXPECT_EQ(whole.layers.size(), 2u) << number;
        EXPECT_EQ(whole.layers.at(2), number == std::string("2") ? "value_gate" : "rows of a");
        EXPECT_EQ(whole.layers.at(3), number == std::string("3") ? "value_gate" : "rows of a");
        EXPECT_EQ(whole.tables, std::set<std::string>{"a"});
    }
}

TEST(WholeAttentionTest, RowsThatTheOutputAddsAreWhole) {
    const WholeAttention whole = whole_attention(parts_of(
        fmt::format("{{{}}}", kReads),
        R"([{"type": "sum", "terms": [{"of": "stream"}, {"table": "b", "scale": 0.1}]}, {"type": "norm"}])"));
    EXPECT_EQ(whole.describe(), "attention of layers 4, 5 (rows of b), table b");
}

}  // namespace speedrun::testing::whole_attention_test
