// Warnings about models that start with too many zeros, compared with their actual gradients.
// build: release
#include "train/config/cannot_learn.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/model_harness.h"
#include "train/config/config_json.h"

namespace speedrun::testing::cannot_learn_test {

ModelConfig model_of(const std::vector<std::string>& settings) {
    std::vector<std::string> all{"device=cpu"};
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_config(R"({
        "model": {"preset": "none", "model_dim": 16, "vocab_size": 40,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "values": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
            "layers": {"count": 2, "each": {"attention": {"heads": 2}, "mlp": {}},
                       "at": {"1": {"attention": {"value_table": "values"}}}},
            "output": [{"type": "norm"}]},
        "batch": {"sequence_length": 8, "microbatch_tokens": 8, "tokens_per_step": 8},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", all)
        .model;
}

// Parameters with zero gradients after four SGD steps from the initial values.
std::vector<std::string> still_zero(const ModelConfig& model) {
    ModelHarness h(model, 16, 8);
    h.model.parameters().initialize(1);
    const HostBatch batch = random_batch(model, 2, 8, false, 3);
    std::vector<std::string> zero;
    for (int step = 0; step < 4; ++step) {
        h.tracker.begin_step();
        h.backward(batch, 1);
        zero.clear();
        std::vector<Values> moved;
        for (const Parameter& p : h.table().all()) {
            const Values gradient = h.gradient(p);
            Values values = h.read(h.model.parameters().master(p));
            if (norm_of(gradient) == 0) zero.push_back(p.name);
            for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.01 * gradient[i];
            moved.push_back(std::move(values));
        }
        for (const Parameter& p : h.table().all()) h.set(p, moved[static_cast<size_t>(p.id)]);
    }
    return zero;
}

struct Case {
    const char* what;
    std::vector<std::string> settings;
    size_t sentences;
    std::vector<std::string> zero;  // parameters with zero gradients
};

TEST(CannotLearnTest, SaysWhatNeverHasAGradient) {
    const std::string zero = R"({"type": "constant", "value": 0})", at = "model.layers.each.";
    const std::string embed = "model.tables.embed.init=" + zero, values = "model.tables.values.init=" + zero;
    const std::string up = at + "mlp.init=" + zero, qkv = at + "attention.init=" + zero;
    const std::string off = R"([{"of": "stream"}, {"of": "output", "scale": 0}])";
    const Case cases[] = {
        {"as modern models start", {}, 0, {}},
        {"zero queries, keys and values alone", {at + "attention.out_init.value=0.1", qkv}, 0, {}},
        {"an MLP without any",
         {up},
         2,
         {"blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight", "blocks.1.mlp.up.weight",
          "blocks.1.mlp.down.weight"}},
        {"relu_squared is flat at zero",
         {up, at + "mlp.down_init.value=0.1"},
         2,
         {"blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight", "blocks.1.mlp.up.weight",
          "blocks.1.mlp.down.weight"}},
        {"gelu is not", {up, at + "mlp.down_init.value=0.1", at + "mlp.activation=gelu_tanh"}, 0, {}},
        {"attention without any, where no table has values",
         {qkv},
         1,
         {"blocks.0.attn.qkv.weight", "blocks.0.attn.out.weight"}},
        {"a sublayer that is off, and gives nothing",
         {at + "mlp.after=" + off, at + "attention.after=" + off},
         4,
         {"blocks.0.attn.out.weight", "blocks.0.attn.output_scale", "blocks.1.mlp.down.weight",
          "blocks.1.mlp.output_scale"}},
        {"one that is off, and gives something",
         {at + "mlp.after=" + off, at + "mlp.down_init.value=0.1"},
         0,
         {}},
        {"a table of zeros with factors of zero",
         {R"(model.tables.pairs={"rows": "ngrams"})",
          at + R"(mlp.after=[{"of": "stream"}, {"of": "output"}, {"table": "pairs", "scale": 0}])"},
         1,
         {"pairs.weight", "blocks.0.mlp.pairs_scale", "blocks.1.mlp.pairs_scale"}},
        {"and with another factor",
         {R"(model.tables.pairs={"rows": "ngrams"})",
          at + R"(mlp.after=[{"of": "stream"}, {"of": "output"}, {"table": "pairs", "scale": 0.1}])"},
         0,
         {}},
        {"no input, and a head", {embed, "model.head.init.value=0.1"}, 0, {}},
    };
    for (const Case& c : cases) {
        const ModelConfig model = model_of(c.settings);
        const std::vector<std::string> sentences = parts_that_cannot_learn(model), frozen = still_zero(model);
        EXPECT_EQ(sentences.size(), c.sentences) << c.what;
        for (const std::string& name : c.zero)
            EXPECT_EQ(std::count(frozen.begin(), frozen.end(), name), 1) << c.what << ": " << name;
        EXPECT_EQ(frozen.empty(), c.zero.empty())
            << c.what << ": " << (frozen.empty() ? "all moves" : frozen.front());
    }
    // All gradients are zero unless attention adds per-token values to the residual stream.
    for (const bool with_output : {false, true}) {
        std::vector<std::string> settings{embed, "model.layers.each.mlp.down_init.value=0.1"};
        if (with_output) settings.push_back(at + "attention.out_init.value=0.1");
        const ModelConfig model = model_of(settings);
        const std::vector<std::string> sentences = parts_that_cannot_learn(model);
        EXPECT_EQ(sentences.size(), with_output ? 0u : 1u);
        EXPECT_EQ(still_zero(model).size() == static_cast<size_t>(ModelHarness(model, 16, 8).table().size()),
                  !with_output);
        const std::string text = sentences.empty() ? "" : sentences.front();
        EXPECT_EQ(text.find("nothing in this model ever learns") != std::string::npos, !with_output) << text;
    }
}

TEST(CannotLearnTest, PresetsLearn) {
    for (const char* preset : {"gpt2", "modern"}) {
        EXPECT_TRUE(parts_that_cannot_learn(preset_model(preset)).empty());
    }
}

TEST(CannotLearnTest, NetworksOfTwoMatricesOfZerosAreReported) {
    const auto reported = [](const std::string& network) {
        const std::vector<std::string> found = parts_that_cannot_learn(model_of(
            {"model.networks.early=" + network,
             R"(model.layers.each.attention={"heads": 2, "gate": {"network": "early", "start": 1}})"}));
        return std::count_if(found.begin(), found.end(), [](const std::string& text) {
            return text.starts_with("model.networks.early.init");
        });
    };
    EXPECT_EQ(reported(R"({"init": {"value": 0}})"), 1);
    EXPECT_EQ(reported("{}"), 0);
}

}  // namespace speedrun::testing::cannot_learn_test
