// Layer table that `plan` prints: text of each node, and merging of equal units into one row.
#include "train/model/graph/layer_table.h"
#include "tests/errors.h"

#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/nodes/linear.h"

namespace speedrun::testing::layer_table_test {

std::vector<std::string> rows_of(const ModelConfig& config, bool documents = true) {
    const ModelGraph model =
        build_model(config, {.tokens = 16, .sequence_length = 8}, {.documents = documents, .logit_rows = 16});
    std::vector<std::string> rows;
    for (const Layer& layer : layer_table(model.graph)) {
        std::string row = fmt::format("{}-{} {}:", layer.first_unit, layer.last_unit, layer.name);
        for (const std::string& node : layer.nodes) row += " " + node + ";";
        rows.push_back(std::move(row));
    }
    return rows;
}

TEST(LayerTableTest, Gpt2) {
    ModelConfig config = model_of("gpt2", {.layers = 4, .width = 16, .heads = 2, .vocabulary = 40});
    const std::string attention_and_mlp =
        " layernorm, gain, bias; linear 16 -> 48, bias; attention 2 x 8, within documents;"
        " linear 16 -> 16, bias, added to the stream; layernorm, gain, bias; linear 16 -> 64, bias; gelu_tanh;"
        " linear 64 -> 16, bias, added to the stream;";
    EXPECT_EQ(rows_of(config), (std::vector<std::string>{
                                   "0-0 embeddings: tied embedding 64 x 16 + positions 8 x 16;",
                                   "1-4 blocks 0-3:" + attention_and_mlp,
                                   "5-5 head: layernorm, gain, bias; head 16 -> 64 (40 tokens), tied, "
                                   "cross entropy;",
                               }));
}

TEST(LayerTableTest, ModernWithMoreTables) {
    const ModelConfig config = model_of(
        "modern", {.layers = 4, .width = 16, .heads = 2, .vocabulary = 64},
        together({with_tables({.layers = 4, .values = 2, .max_ngram = 3, .ngram_rows = 50}),
                  {kMix, "model.layers.each.attention.window=4", "model.layers.each.attention.scale=0.12"}}));
    const std::string attention =
        " attention 2 x 8, window 4, scale 0.12; linear 16 -> 16, added to the stream; rmsnorm;"
        " linear 16 -> 64; relu_squared; linear 64 -> 16, added to the stream;";
    EXPECT_EQ(
        rows_of(config, false),
        (std::vector<std::string>{
            "0-0 embeddings: embedding 64 x 16; n-gram embedding 50 x 16, 2 rows a token; rmsnorm;",
            "1-1 block 0: mix of first and first; rmsnorm; linear 16 -> 48; QK-norm, rotary 2 x 8;" +
                attention,
            "2-2 block 1: mix of stream after mlp.down and first; rmsnorm; linear 16 -> 48; QK-norm, rotary 2 x 8;" +
                attention,
            "3-4 blocks 2-3: mix of stream after mlp.down and first; rmsnorm; linear 16 -> 48; embedding 64 x 16;"
            " mix of v and value_embedding; QK-norm, rotary 2 x 8;" +
                attention,
            "5-5 head: rmsnorm; head 16 -> 64, not tied, softcap 15, cross entropy;",
        }));
}

TEST(LayerTableTest, SoftcapTextShowsFunction) {
    const auto shown = [](double cap, SoftcapFunction function, double shift, double scale) {
        HeadConfig head;
        head.softcap = cap;
        head.softcap_function = function;
        head.logit_shift = shift;
        head.logit_scale = scale;
        return head.cap_text();
    };
    EXPECT_EQ(shown(0, SoftcapFunction::tanh, 0, 0), "");
    EXPECT_EQ(shown(30, SoftcapFunction::tanh, 0, 0), "softcap 30");
    EXPECT_EQ(shown(30, SoftcapFunction::tanh, 0, 30), "softcap 30");
    EXPECT_EQ(shown(10, SoftcapFunction::tanh, -2, 4), "softcap 10 x tanh((z - 2)/4)");
    EXPECT_EQ(shown(10, SoftcapFunction::tanh, -2, 0), "softcap 10 x tanh((z - 2)/10)");
    EXPECT_EQ(shown(30, SoftcapFunction::sigmoid, 0, 0), "softcap 30 x sigmoid(z/7.5)");
    EXPECT_EQ(shown(23, SoftcapFunction::sigmoid, 5, 7.5), "softcap 23 x sigmoid((z + 5)/7.5)");
}

// Units with the same nodes but another width get their own row.
TEST(LayerTableTest, DifferentWidthsAreNotMerged) {
    NodeGraph graph;
    const Extent tokens{Dimension::tokens, 2};
    ValueId x = graph.value("x", Element::compute_dtype, {tokens, {Dimension::width, 8}}, Holder::batch);
    for (int unit = 0; unit < 3; ++unit) {
        if (unit > 0) graph.begin_unit();
        graph.name_unit(fmt::format("block {}", unit));
        const ValueId y =
            graph.value("y", Element::compute_dtype, {tokens, {Dimension::width, unit < 2 ? 8 : 4}});
        graph.add(std::make_unique<Linear>(Linear::Ports{.y = y, .x = x, .weight = unit}));
        x = y;
    }
    const std::vector<Layer> layers = layer_table(graph);
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[0].name, "blocks 0-1");
    EXPECT_EQ(layers[1].name, "block 2");
    EXPECT_EQ(layers[1].nodes, std::vector<std::string>{"linear 8 -> 4"});
}

TEST(LayerTableTest, QkNormAndRotaryAlone) {
    const auto row = [](const char* setting) {
        return rows_of(tiny_model("modern", {std::string("model.layers.each.attention.") + setting}))[1];
    };
    EXPECT_THAT(row("qk_norm=false"), HasSubstr("; rotary 2 x 8;"));
    EXPECT_THAT(row("rotary=null"), HasSubstr("; QK-norm 2 x 8;"));
}

// Names without a number are not merged.
TEST(LayerTableTest, UnnumberedUnitsAreNotMerged) {
    NodeGraph graph;
    graph.name_unit("encoder");
    graph.begin_unit();
    graph.name_unit("decoder");
    graph.begin_unit();
    const std::vector<Layer> layers = layer_table(graph);
    ASSERT_EQ(layers.size(), 1u);  // all units are empty
    EXPECT_EQ(layers[0].name, "encoder to unit 2");
    EXPECT_EQ(layers[0].last_unit, 2);
}

}  // namespace speedrun::testing::layer_table_test
