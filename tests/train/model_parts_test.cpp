// Models built from parts, and refused configs.
// Covers: train/model/graph/parameter_uses.cpp
#include "train/config/model_parts.h"
#include "tests/errors.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"

namespace speedrun::model_parts_test {

using Json = nlohmann::ordered_json;

// A small model that uses every part.
const char* const kModel = R"({
  "preset": "none", "model_dim": 16, "vocab_size": 100,
  "tables": {"embed": {"init": {"type": "normal", "value": 1}},
             "values": {"init": {"type": "normal", "value": 1}}},
  "windows": {"short": 8, "long": 32},
  "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
  "layers": {"count": 4,
             "each": {"enter": [{"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}],
                      "attention": {"heads": 2, "window": "short"}, "mlp": {"ratio": 2}},
             "at": {"0": null, "1": {"attention": {"window": "long"}},
                    "2": {"attention": {"window": "long", "value_table": "values"}},
                    "3": {"enter": [], "attention": null}}},
  "output": [{"type": "norm"}],
  "head": {"softcap": 30}
})";

Config config_of(const Json& model) {
    const Json whole = {
        {"model", model},
        {"batch", {{"sequence_length", 32}, {"microbatch_tokens", 64}, {"tokens_per_step", 64}}},
        {"optimizers", {{"groups", {{{"type", "adamw"}, {"params", {"*"}}}}}}}};
    return parse_config(whole.dump(), "test", {});
}

// The model with one value set, by JSON pointer. A discarded value removes the key.
Json changed(const std::string& pointer, const Json& value) {
    Json model = Json::parse(kModel);
    model[Json::json_pointer(pointer)] = value;
    return model;
}

std::string error_of(const Json& model) {
    return error_of(ExitCode::usage, [&] { config_of(model); });
}

ModelGraph graph_of(const ModelConfig& model) {
    return build_model(model, {.tokens = 64, .sequence_length = 32}, {.logit_rows = 32});
}

TEST(ModelParts, LayersMergeEachAndAt) {
    const ModelParts parts = config_of(Json::parse(kModel)).model.parts;
    const auto layers = parts.layers.resolved();
    ASSERT_EQ(layers.size(), 4U);
    EXPECT_FALSE(layers[0]);
    for (const size_t i : {1U, 2U}) {
        ASSERT_TRUE(layers[i] && layers[i]->attention && layers[i]->enter.size() == 1);
        EXPECT_EQ(layers[i]->attention->heads, 2);  // of each
        EXPECT_EQ(parts.window_of(*layers[i]->attention, 1), 32);
    }
    EXPECT_EQ(layers[1]->attention->value_table, "");
    EXPECT_EQ(layers[2]->attention->value_table, "values");
    ASSERT_TRUE(layers[3] && layers[3]->mlp);
    EXPECT_FALSE(!layers[3]->enter.empty() || layers[3]->attention);
    EXPECT_EQ(layers[3]->mlp->ratio, 2);
    EXPECT_EQ(parts.num_layers(), 3);
}

TEST(ModelParts, GraphHasConfiguredParameters) {
    const ModelGraph model = graph_of(config_of(Json::parse(kModel)).model);
    EXPECT_EQ(model.graph.num_units(), 5);  // embeddings, layers 1 to 3, head
    EXPECT_FALSE(model.table.contains("blocks.0.mlp.up.weight"));
    EXPECT_FALSE(model.table.contains("blocks.3.attn.qkv.weight"));
    EXPECT_FALSE(model.table.contains("blocks.3.mix"));
    EXPECT_EQ(model.table.find("blocks.3.mlp.up.weight").shape, (std::vector<int64_t>{32, 16}));
    EXPECT_EQ(model.table.find("values.weight").shape, (std::vector<int64_t>{128, 16}));
}

// A table shared by layers 1 and 3 is one parameter. Backward does not read its values.
TEST(ModelParts, LayersShareValueTable) {
    Json model = changed("/layers/at/1/attention/value_table", "values");
    model["layers"]["at"]["3"] = {{"attention", {{"value_table", "values"}}}};
    model["layers"]["at"]["2"]["attention"]["value_table"] = "";
    const ModelGraph written = graph_of(config_of(model).model);
    EXPECT_EQ(written.table.find("values.weight").uses, (std::vector<UnitUse>{{1, false}, {3, false}}));
    EXPECT_EQ(written.table.find("blocks.1.attn.qkv.weight").uses, (std::vector<UnitUse>{{1, true}}));
    EXPECT_EQ(written.table.find("embed.weight").uses, (std::vector<UnitUse>{{0, false}}));
}

// Each option adds its parameters, and nodes next to the ones that it modifies.
TEST(ModelParts, OptionsAddNodesAndParameters) {
    Json model = Json::parse(kModel);
    model["input"] = {
        {{"type", "table"}, {"table", "embed"}}, {{"type", "smear"}, {"columns", 5}}, {{"type", "norm"}}};
    model["layers"]["at"]["3"]["enter"] =
        Json::parse(R"([{"terms": [{"of": "stream"}, {"of": "after 1", "gate": -1.5}]}])");
    model["output"] = Json::parse(
        R"([{"type": "sum", "terms": [{"of": "stream"}, {"of": "after 2", "constant": -1, "scale": 0.5}]}, {"type": "norm"}])");
    model["layers"]["at"]["1"]["attention"]["gate"] = {{"columns", 6}};
    const ModelGraph written = graph_of(config_of(model).model);
    const ParameterTable& table = written.table;
    EXPECT_EQ(table.find("smear.gate.weight").shape, (std::vector<int64_t>{1, 5}));
    EXPECT_EQ(table.find("smear.scale").init.value, 0);
    EXPECT_EQ(table.find("blocks.1.attn.gate.weight").shape, (std::vector<int64_t>{2, 6}));
    EXPECT_EQ(table.find("blocks.3.enter.after_1_gate").init.value, -1.5F);
    EXPECT_EQ(table.find("output.after_2_scale").init.value, 0.5F);
    const std::vector<Layer> layers = layer_table(written.graph);
    const auto of = [&](size_t layer) { return fmt::format("{}", fmt::join(layers[layer].nodes, "; ")); };
    EXPECT_EQ(of(0),
              "embedding 128 x 16; sigmoid gate 5 -> 1 of embedding; sum of smear.gate x embedding of the "
              "token before; sum of embedding + c0 x gated row before; rmsnorm");
    EXPECT_THAT(of(1), HasSubstr("sigmoid gate 6 -> 2 of attn_norm"));
    EXPECT_THAT(of(1), HasSubstr("sum of attn.gate x attn_out; linear"));
    EXPECT_THAT(of(3), HasSubstr("sum of stream after mlp.down + gate x stream after mlp.down"));
    EXPECT_THAT(of(4), HasSubstr("sum of stream after mlp.down + -1 x c0 x stream after mlp.down"));
}

// All norms share one epsilon, including QK-norm. The default is not printed.
TEST(ModelParts, NormsUseConfiguredEpsilon) {
    const auto nodes = [](const Json& model) {
        std::string text;
        for (const Layer& layer : layer_table(graph_of(config_of(model).model).graph))
            text += fmt::format("{}; ", fmt::join(layer.nodes, "; "));
        return text;
    };
    const std::string usual = nodes(Json::parse(kModel)),
                      recipe = nodes(changed("/norms", {{"epsilon", 1.1920929e-7}}));
    const auto count = [](const std::string& text, const std::string& word) {
        size_t found = 0;
        for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
        return found;
    };
    EXPECT_EQ(count(usual, "epsilon"), 0U) << usual;
    EXPECT_EQ(count(recipe, "rmsnorm, epsilon 1.2e-07"), count(usual, "rmsnorm")) << recipe;
    EXPECT_EQ(count(recipe, "8, epsilon 1.2e-07"), count(usual, "QK-norm")) << recipe;
}

// A head of 8 has 4 pairs. Pairs without rotation have cosine 1 at all positions. Layers with equal angles share one
// table.
TEST(ModelParts, FractionLeavesPairsUnrotated) {
    Json model =
        changed("/layers/each/attention/rotary", {{"base", 64}, {"fraction", 0.5}, {"endpoint", true}});
    model["layers"]["at"]["1"]["attention"]["rotary"] = {{"fraction", 1}, {"endpoint", false}};
    const ModelGraph written = graph_of(config_of(model).model);
    std::vector<const Value*> cosines;
    for (const Value& value : written.graph.values())
        if (value.name == "rotary cos") cosines.push_back(&value);
    ASSERT_EQ(cosines.size(), 2U);
    for (const size_t position : {0U, 5U, 31U}) {
        const float* const all = cosines[0]->content.data() + position * 4;  // layer 1's: 64^(-i/4)
        const float* const some = cosines[1]->content.data() + position * 4;
        const auto cos_of = [&](double frequency) {
            return static_cast<float>(std::cos(static_cast<double>(position) * frequency));
        };
        EXPECT_EQ(all[1], cos_of(std::pow(64, -0.25)));
        EXPECT_EQ(some[0], cos_of(1));
        EXPECT_EQ(some[1], cos_of(1.0 / 64));
        EXPECT_EQ(some[2], 1);
        EXPECT_EQ(some[3], 1);
    }
    const std::vector<Layer> layers = layer_table(written.graph);
    EXPECT_THAT(fmt::format("{}", fmt::join(layers[2].nodes, "; ")),
                HasSubstr("rotary 2 x 8, 2 of 4 pairs, to 1/64;"))
        << fmt::format("{}", fmt::join(layers[2].nodes, "; "));
}

// The factor is added only in layers without a value table; value_mix already has two factors.
TEST(ModelParts, ValueScaleAddsFactor) {
    EXPECT_FALSE(graph_of(config_of(Json::parse(kModel)).model).table.contains("blocks.1.attn.value_scale"));
    Json model = changed("/layers/each/attention/value_scale", true);
    model["layers"]["each"]["attention"]["value_start"] = 0.75;
    const ModelGraph written = graph_of(config_of(model).model);
    const Parameter& factor = written.table.find("blocks.1.attn.value_scale");
    EXPECT_EQ(factor.shape, (std::vector<int64_t>{1}));
    EXPECT_EQ(factor.init.value, 0.75F);
    EXPECT_FALSE(written.table.contains("blocks.2.attn.value_scale"));
    EXPECT_EQ(written.table.find("blocks.2.attn.value_mix").init.value, 0.75F);
    EXPECT_FALSE(written.table.contains("blocks.3.attn.value_scale"));  // no attention
    const std::vector<Layer> layers = layer_table(written.graph);
    EXPECT_THAT(fmt::format("{}", fmt::join(layers[1].nodes, "; ")),
                HasSubstr("linear 16 -> 48, c x the last 16; QK-norm"));
}

// 30·σ(z/7.5) is 15 + 15·tanh(z/15), and 23·σ((z + 5)/7.5) is 11.5 + 11.5·tanh((z + 5)/15).
TEST(ModelParts, TanhAndSigmoidSoftcapsAgree) {
    const auto cap_of = [](const Json& head) {
        return config_of(changed("/head", head)).model.parts.head.cap();
    };
    const auto expect_sigmoid = [](const Softcap& cap, double c, double shift, double scale) {
        ASSERT_TRUE(cap.present());
        for (const double z : {-20.0, -5.0, 0.0, 1.5, 12.0})
            EXPECT_NEAR(cap.of(static_cast<float>(z)), c / (1 + std::exp(-(z + shift) / scale)) - c / 2, 1e-5)
                << z;
    };
    expect_sigmoid(cap_of({{"softcap", 30}, {"softcap_function", "sigmoid"}, {"logit_scale", 7.5}}), 30, 0,
                   7.5);
    expect_sigmoid(cap_of({{"softcap", 30}, {"softcap_function", "sigmoid"}}), 30, 0, 7.5);
    const Json newest = {
        {"softcap", 23}, {"softcap_function", "sigmoid"}, {"logit_shift", 5}, {"logit_scale", 7.5}};
    expect_sigmoid(cap_of(newest), 23, 5, 7.5);
    const Softcap shifted = cap_of({{"softcap", 10}, {"logit_shift", -2}, {"logit_scale", 4}});
    EXPECT_FLOAT_EQ(shifted.of(3), 10 * std::tanh(0.25F));
    EXPECT_FLOAT_EQ(shifted.slope(), 2.5);
    EXPECT_FLOAT_EQ(cap_of({{"softcap", 30}}).of(3), 30 * std::tanh(0.1F));
    EXPECT_FALSE(cap_of({{"softcap", 0}}).present());
}

TEST(ModelParts, ResolvedConfigRoundTrips) {
    const std::string text = config_to_json(config_of(Json::parse(kModel)));
    EXPECT_EQ(config_to_json(parse_config(text, "resolved", {})), text);
    EXPECT_EQ(text.find("num_heads"), std::string::npos);
}

struct Refusal {
    std::string pointer;
    Json value;
    std::string message;
};

TEST(ModelParts, InvalidConfigErrorsHaveHints) {
    const std::vector<Refusal> refusals = {
        {"/num_heads", 4,
         "model.num_heads: there is no such key any more; instead: model.layers.each.attention.heads"},
        {"/layer", 4, "model.layer: unknown key, did you mean layers?"},
        {"/layers/each/attention/head", 4,
         "model.layers.each.attention.head: unknown key, did you mean heads?"},
        {"/layers/at/4", nullptr, "model.layers.at.4: expected numbers of layers from 0 to 3"},
        {"/layers/at/x", nullptr, "model.layers.at.x: expected numbers of layers"},
        {"/layers/at/2-1", nullptr, "model.layers.at.2-1: expected numbers of layers"},
        {"/layers/at/0-2", nullptr, "model.layers.at: layer 0 is in \"0\" and in \"0-2\""},
        {"/layers/at", {{"0-3", nullptr}}, "model.layers: all 4 are removed"},
        {"/layers/each/attention/heads", 3, "attention.heads 3 does not divide model.model_dim 16"},
        {"/layers/each/attention/heads", 16, "attention.rotary needs an even head size, not 1"},
        {"/layers/at/2/attention/window", "middle",
         "no window \"middle\" in model.windows; known here: long, short"},
        {"/layers/at/2/attention/value_table", "value",
         "no table \"value\" in model.tables, did you mean values?"},
        {"/layers/at/2/attention/value_table", "embed", "\"embed\" is in model.input too"},
        {"/tables/more", Json::object(), "model.tables.more: nothing reads it"},
        {"/tables/a*b", Json::object(), "\"a*b\" is no name"},
        {"/tables/blocks.0", Json::object(), "parameters of that name belong to the model"},
        {"/input", Json::array(), "model.input is empty"},
        {"/input/0/type", "smear", "model.input[0]: begin with a table of tokens"},
        {"/input/0/table", "embet",
         "model.input[0].table: no table \"embet\" in model.tables, did you mean embed?"},
        {"/input/1", {{"type", "table"}, {"table", "embed"}}, "\"embed\" is added twice"},
        {"/input/2", {{"type", "norm"}}, "model.input[2]: a second norm"},
        {"/output/1", {{"type", "norm"}}, "model.output[1]: a second norm"},
        {"/layers/each/attention/gate",
         {{"columns", 17}},
         "attention.gate.columns 17 exceeds model.model_dim 16"},
        {"/input/1/type", "nrom", "model.input[1].type: expected table | smear | norm | sum, got \"nrom\""},
        {"/output/0/type", "smear", "model.output[0]: smear is for model.input"},
        {"/head/tied_to", "values", "table \"values\" is a value_table too"},
        {"/tables/embed/rows", "positions", "begin with a table of tokens"},
        {"/layers/each/attention/rotary",
         {{"fraction", 0.3}},
         "attention.rotary.fraction 0.3 of 4 pairs of a head's dimensions is 1.2, expected a whole number from 1 to 4: set N/4"},
        {"/layers/each/attention/rotary", {{"fraction", 0}}, "is 0, expected a whole number from 1 to 4"},
        {"/layers/each/attention/rotary", {{"fraction", 1.25}}, "rotary.fraction: 1.25 is outside [0, 1]"},
        {"/layers/each/attention/rotary",
         {{"fraction", 0.25}, {"endpoint", true}},
         "attention.rotary.endpoint: a single rotated pair has frequency 1, not 1/base: expected 2 pairs, fraction 0.5"},
        {"/layers/each/attention/key_offset", true,
         "attention.key_offset: rotary rotates 4 of 4 pairs of a head's dimensions, expected some but not all"},
        {"/layers/each/attention",
         {{"heads", 2}, {"rotary", nullptr}, {"key_offset", true}},
         "attention.key_offset: rotary rotates 0 of 4 pairs"},
        {"/layers/each/attention",
         {{"heads", 1}, {"paired", true}},
         "attention.paired: heads 1 cannot be paired, expected an even number"},
        {"/layers/each/attention",
         {{"heads", 2}, {"rotary", {{"fraction", 0.5}}}, {"paired", true}, {"key_offset", true}},
         "attention.paired: not with key_offset"},
        {"/head", {{"softcap", 1e-45}}, "model.head.softcap is 1e-45: set it to 0"},
        {"/head", {{"softcap", 1}, {"logit_scale", 1e-30}}, "model.head.logit_scale is 1e-30: set it to 0"},
        {"/head",
         {{"softcap", 0}, {"logit_shift", 5}},
         "model.head: softcap is 0, so softcap_function tanh, logit_shift 5 and logit_scale 0 have no effect"},
        {"/tables/embed/hash", "products",
         "model.tables.embed.hash: products is a hash of 2-grams, not of tokens"},
        {"/tables/embed/sign_rows", 9,
         "model.tables.embed.sign_rows 9: signs belong to ngrams of hash products"},
        {"/tables/grams",
         {{"rows", "ngrams"}, {"max_ngram", 3}, {"hash", "products"}},
         "model.tables.grams.hash: products is a hash of 2-grams, not of up to 3-grams"},
        {"/tables/grams",
         {{"rows", "ngrams"}, {"num_rows", 1}, {"hash", "products"}},
         "model.tables.grams.num_rows 1: hash products needs at least 2"},
        {"/input/0",
         {{"type", "sum"}, {"terms", {{{"of", "stream"}}}}},
         "model.input[0]: begin with a table of tokens"},
        {"/norms", {{"epsilon", 0}}, "model.norms.epsilon: 0 is outside [1e-20, 1]"},
    };
    for (const Refusal& refusal : refusals) {
        const std::string error = error_of(changed(refusal.pointer, refusal.value));
        EXPECT_THAT(error, HasSubstr(refusal.message)) << refusal.pointer << ": " << error;
    }
    Json two = changed("/tables/more", {{"rows", "ngrams"}});
    two["tables"]["again"] = {{"rows", "ngrams"}};
    EXPECT_THAT(error_of(two), HasSubstr("model.tables: 2 tables of ngrams, at most one is read"));
}

}  // namespace speedrun::model_parts_test
