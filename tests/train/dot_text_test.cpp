// Graphviz output: the full text for a tiny unit, and required parts for units of a model.
#include "train/model/graph/dot_text.h"

#include <gtest/gtest.h>

#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun::testing::dot_text_test {

size_t count_of(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

struct Model {
    explicit Model(const ModelConfig& config)
        : model(build_model(config, {.tokens = 16, .sequence_length = 8}, {.logit_rows = 16})),
          fusions(model_fusions()),
          program(derive_program(model.graph, fusions, Retained(static_cast<size_t>(model.graph.num_units())),
                                 DType::f32)) {}
    std::string text(int unit) const {
        return dot_text({.graph = model.graph,
                         .table = model.table,
                         .program = program,
                         .unit = unit,
                         .title = "a <title> & \"more\""});
    }
    ModelGraph model;
    Fusions fusions;
    Program program;
};

TEST(DotTextTest, TextOfEmbeddings) {
    EXPECT_EQ(Model(tiny_model()).text(0), R"dot(digraph unit {
  rankdir=TB; fontname="Helvetica"; fontsize=16; nodesep=0.35; ranksep=0.3; labelloc=t;
  label=<<table border="0"><tr><td>a &lt;title&gt; &amp; &quot;more&quot;</td></tr><tr><td><font point-size="10" color="#555555">bold: backward reads it; dotted: no gradient goes back; yellow: fused in forward</font></td></tr></table>>;
  node [shape=plaintext, margin="0.05,0.03", height=0, width=0, fontname="Helvetica", fontsize=12];
  edge [color="#555555", arrowsize=0.7];
  subgraph cluster_unit {
    label=""; style=rounded; color="#888888";
    v4 [label=<<b>embedding</b><br/><font point-size="10" color="#555555">tokens 16 x width 16</font>>];
    n0 [shape=plain, label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="6"><tr><td bgcolor="#dce9f7">embedding 64 x 16</td><td bgcolor="#e6f2e1" align="left">embed.weight <font point-size="10" color="#555555">64 x 16</font></td></tr></table>>];
    v5 [label=<<b>first</b><br/><font point-size="10" color="#555555">tokens 16 x width 16</font>>];
    v6 [label=<<b>embedding_rstd</b><br/><font point-size="10" color="#555555">tokens 16, f32</font>>];
    n1 [shape=plain, label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="6"><tr><td bgcolor="#dce9f7">rmsnorm</td></tr></table>>];
  }
  g0 [shape=box, style="rounded,filled", color="#bbbbbb", fillcolor="#f2f2f2", label=<batch.tokens <font point-size="10" color="#555555">tokens 16, ids</font>>];
  x5 [shape=box, style="rounded,filled", color="#bbbbbb", fillcolor="#f2f2f2", label=<<font point-size="10" color="#555555">to block 0</font>>];
  g0 -> n0 [style=dotted];
  n0 -> v4;
  v4 -> n1;
  n1 -> v5;
  n1 -> v6;
  v5 -> x5;
}
)dot");
}

TEST(DotTextTest, TextOfBlock) {
    const Model m(
        model_of("modern", {.layers = 3}, together({{kMix}, with_tables({.layers = 3, .values = 1})})));
    const NodeGraph& graph = m.model.graph;
    const std::string text = m.text(3);
    for (const auto& node : graph.nodes())
        EXPECT_EQ(count_of(text, fmt::format("  n{} [", node->id())), graph.unit_of(*node) == 3 ? 1u : 0u)
            << node->kind();
    EXPECT_EQ(count_of(text, "subgraph cluster_fused"), 3u);  // mix + norm, rotary + values, linear + relu²
    for (const char* const part :
         {"<b>first</b><br/><font point-size=\"10\" color=\"#555555\">from embeddings: tokens 16 x width 16<",
          "from block 1: ", "to head",
          "value_embed.0.weight <font point-size=\"10\" color=\"#555555\">64 x 16<",
          ">columns 32-47 of attn.qkv<", ">over columns 0-15 of attn.qkv<", "linear 16 -&gt; 64",
          "a &lt;title&gt; &amp; &quot;more&quot;", "<b>batch.first_key</b> "})
        EXPECT_GT(count_of(text, part), 0u) << part << "\n" << text;
    EXPECT_EQ(count_of(text, "blocks."), 0u);  // names omit the unit's own prefix
    EXPECT_EQ(count_of(m.text(0), "to block 0, block 1 and 1 more"), 1u);
    EXPECT_EQ(count_of(m.text(4), "read after the pass"), 1u);
    EXPECT_THROW(m.text(5), Error);
    EXPECT_THROW(m.text(-1), Error);
}

TEST(DotTextTest, DefaultUnitHasMostNodes) {
    const auto unit = [](int64_t values) {
        return default_unit(
            Model(model_of("modern", {.layers = 6}, with_tables({.layers = 6, .values = values})))
                .model.graph);
    };
    EXPECT_EQ(unit(0), 3);  // blocks 0 to 5 are units 1 to 6, with equal nodes
    EXPECT_EQ(unit(2), 5);  // units 5 and 6 have the most nodes
}

}  // namespace speedrun::testing::dot_text_test
