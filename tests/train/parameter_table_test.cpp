// Parameters declared by the model: names, number of elements and initial values.
// Covers: train/model/build_model.cpp train/model/graph_writer.cpp train/model/model_extents.cpp train/model/parts/tables.cpp
#include "train/parameters/parameter_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"

namespace speedrun::testing::parameter_table_test {

ModelConfig model_config(const char* preset, int64_t layers, int64_t width, int64_t vocab,
                         const ModelSettings& more = {}) {
    return model_of(preset, {.layers = layers, .width = width, .heads = 4, .vocabulary = vocab}, more);
}

std::vector<std::string> names_of(const ParameterTable& table) {
    std::vector<std::string> names;
    for (const Parameter& p : table.all()) names.push_back(p.name);
    return names;
}

TEST(ParameterTableTest, NamesOfGpt2) {
    const ParameterTable table = parameters_of(model_config("gpt2", 1, 64, 257), 32);
    const std::vector<std::string> expected = {"embed.weight",
                                               "position.weight",
                                               "blocks.0.attn_norm.gain",
                                               "blocks.0.attn_norm.bias",
                                               "blocks.0.attn.qkv.weight",
                                               "blocks.0.attn.qkv.bias",
                                               "blocks.0.attn.out.weight",
                                               "blocks.0.attn.out.bias",
                                               "blocks.0.mlp_norm.gain",
                                               "blocks.0.mlp_norm.bias",
                                               "blocks.0.mlp.up.weight",
                                               "blocks.0.mlp.up.bias",
                                               "blocks.0.mlp.down.weight",
                                               "blocks.0.mlp.down.bias",
                                               "final_norm.gain",
                                               "final_norm.bias"};
    EXPECT_EQ(names_of(table), expected);
}

std::string text_of(const DimensionSet& set) {
    std::string text;
    for (int d = 0; d <= static_cast<int>(Dimension::numbers); ++d)
        if (set.contains(static_cast<Dimension>(d)))
            text += (text.empty() ? "" : ", ") + std::string(name_of(static_cast<Dimension>(d)));
    return text;
}

// Dimensions over which gradients are summed: tokens for all parameters, also columns for factors of whole rows.
TEST(ParameterTableTest, GradientsSumOverAbsentDimensions) {
    const ModelConfig model = model_config(
        "modern", 2, 64, 257,
        together({with_tables({.values = 1, .max_ngram = 3, .ngram_rows = 50}),
                  {kMix, "model.norms.gain=true", "model.norms.bias=true",
                   "model.layers.each.attention.bias=true", "model.layers.each.mlp.bias=true"}}));
    const ParameterTable modern = parameters_of(model, 32);
    for (const Parameter& p : modern.all()) {
        const bool weighs_heads = p.name.find("value_mix") != std::string::npos,
                   weighs_width = p.name.find(".mix") != std::string::npos;
        EXPECT_EQ(text_of(p.summed), weighs_heads   ? "tokens, head width"
                                     : weighs_width ? "tokens, width"
                                                    : "tokens")
            << p.name;
    }
    // The factor of a skip is the sigmoid of a scalar.
    const Config parts = read_config(SPEEDRUN_SOURCE_ROOT "/configs/kjv_parts.json", {});
    const ParameterTable with_skip = parameters_of(parts.model, 32);
    EXPECT_EQ(text_of(with_skip.find("blocks.3.skip").summed), "tokens, width");
    EXPECT_EQ(text_of(with_skip.find("backout.1").summed), "tokens, width");
    EXPECT_EQ(text_of(with_skip.find("blocks.0.attn.gate.weight").summed), "tokens");
    const ParameterTable gpt2 = parameters_of(model_config("gpt2", 1, 64, 257), 32);
    for (const Parameter& p : gpt2.all()) EXPECT_EQ(text_of(p.summed), "tokens") << p.name;
}

TEST(ParameterTableTest, NamesOfModernWithMixesAndValues) {
    const ModelConfig model =
        model_config("modern", 2, 64, 257, together({{kMix}, with_tables({.values = 1})}));
    const ParameterTable table = parameters_of(model, 32);
    const std::vector<std::string> expected = {"embed.weight",
                                               "value_embed.0.weight",
                                               "blocks.0.mix",
                                               "blocks.0.attn.qkv.weight",
                                               "blocks.0.attn.out.weight",
                                               "blocks.0.mlp.up.weight",
                                               "blocks.0.mlp.down.weight",
                                               "blocks.1.mix",
                                               "blocks.1.attn.qkv.weight",
                                               "blocks.1.attn.value_mix",
                                               "blocks.1.attn.out.weight",
                                               "blocks.1.mlp.up.weight",
                                               "blocks.1.mlp.down.weight",
                                               "head.weight"};
    EXPECT_EQ(names_of(table), expected);
}

TEST(ParameterTableTest, ShapesAndUnits) {
    const ParameterTable table = parameters_of(model_config("gpt2", 3, 64, 257), 32);
    EXPECT_EQ(table.num_units(), 5);
    int last_unit = 0;
    std::set<std::string> names;
    for (int id = 0; id < table.size(); ++id) {
        const Parameter& p = table[id];
        EXPECT_EQ(p.id, id);
        EXPECT_TRUE(names.insert(p.name).second) << p.name;
        EXPECT_EQ(p.full_precision, p.shape.size() == 1) << p.name;
        EXPECT_GE(p.unit(), last_unit) << p.name << ": units must be contiguous";
        EXPECT_LE(p.unit(), last_unit + 1) << p.name;
        last_unit = p.unit();
        if (p.is_matrix()) {
            EXPECT_EQ(p.stacks().size(), p.name.ends_with("qkv.weight") ? 3u : 1u) << p.name;
        }
    }
    EXPECT_EQ(table.find("embed.weight").shape, (std::vector<int64_t>{320, 64}));  // 257 rows, padded
    EXPECT_EQ(table.find("position.weight").shape, (std::vector<int64_t>{32, 64}));
    EXPECT_EQ(table.find("blocks.2.attn.qkv.weight").shape, (std::vector<int64_t>{192, 64}));
    EXPECT_EQ(table.find("blocks.2.mlp.up.weight").shape, (std::vector<int64_t>{256, 64}));
    EXPECT_EQ(table.find("blocks.2.mlp.down.weight").shape, (std::vector<int64_t>{64, 256}));
    EXPECT_EQ(table.find("blocks.2.mlp.down.weight").unit(), 3);
    EXPECT_EQ(table.find("final_norm.gain").unit(), 4);
    EXPECT_THROW(table.find("blocks.3.mix"), Error);
    EXPECT_FALSE(table.contains("head.weight"));
}

// GPT-2 124M: embedding 50304·768, positions 1024·768, twelve blocks of 12·768² + 13·768, final norm 2·768. The usual
// count, 124,439,808, excludes the 47 padding rows.
TEST(ParameterTableTest, CountsOfGpt2) {
    const ModelConfig model = model_config("gpt2", 12, 768, 50257);
    EXPECT_EQ(model.padded_vocab_size(), 50304);
    const int64_t count = parameters_of(model, 1024).numel();
    EXPECT_EQ(count, 124475904);
    EXPECT_EQ(count - 47 * 768, 124439808);
}

// No vectors of norms and linear layers, no positions, a separate head.
TEST(ParameterTableTest, CountsOfModern) {
    const int64_t count = parameters_of(model_config("modern", 12, 768, 50257), 1024).numel();
    EXPECT_EQ(count, 2 * 50304 * 768 + 12 * 12 * 768 * 768);
}

// ---- initial values

Values initial_values(ModelHarness& h, const std::string& name, uint64_t seed) {
    h.model.parameters().initialize(seed);
    return h.read(h.model.parameters().master(h.table().find(name)));
}

// Sample mean and deviation of n normal (or uniform) values must be within 5 standard errors: false alarm once in two
// million.
void expect_deviation(ModelHarness& h, const std::string& name, double deviation) {
    const Values values = initial_values(h, name, 1);
    const auto n = static_cast<double>(values.size());
    double mean = 0, squares = 0;
    for (double value : values) {
        mean += value / n;
        squares += value * value / n;
    }
    EXPECT_NEAR(mean, 0, 5 * deviation / std::sqrt(n)) << name;
    EXPECT_NEAR(std::sqrt(squares), deviation, 5 * deviation / std::sqrt(2 * n)) << name;
}

void expect_uniform(ModelHarness& h, const std::string& name, double bound) {
    expect_deviation(h, name, bound / std::sqrt(3.0));
    const double largest = largest_of(initial_values(h, name, 1));
    EXPECT_LE(largest, bound * (1 + 1e-6)) << name;  // the bound is rounded to f32
    EXPECT_GT(largest, 0.99 * bound) << name;
}

TEST(InitialValuesTest, Gpt2) {
    ModelHarness h(model_config("gpt2", 2, 64, 257), 32, 32);
    for (const char* name :
         {"embed.weight", "position.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.up.weight"}) {
        expect_deviation(h, name, 0.02);
    }
    for (const char* name : {"blocks.0.attn.out.weight", "blocks.1.mlp.down.weight"})
        expect_deviation(h, name, 0.01);  // 0.02/√4
    EXPECT_EQ(initial_values(h, "blocks.1.mlp_norm.gain", 1), Values(64, 1.0));
    EXPECT_EQ(initial_values(h, "final_norm.bias", 1), Values(64, 0.0));
    EXPECT_EQ(initial_values(h, "blocks.0.attn.qkv.bias", 1), Values(192, 0.0));
}

TEST(InitialValuesTest, Modern) {
    const ModelConfig model =
        model_config("modern", 2, 64, 257,
                     together({{kMix}, with_tables({.values = 1, .max_ngram = 3, .ngram_rows = 50})}));
    ModelHarness h(model, 32, 32);
    EXPECT_EQ(h.table().find("ngram_embed.weight").shape, (std::vector<int64_t>{50, 64}));
    EXPECT_EQ(largest_of(initial_values(h, "ngram_embed.weight", 1)), 0);
    expect_deviation(h, "embed.weight", 1);
    expect_deviation(h, "value_embed.0.weight", 1);
    expect_uniform(h, "blocks.0.attn.qkv.weight", std::sqrt(3.0) * 0.5 / 8);  // fan-in 64
    expect_uniform(h, "blocks.1.mlp.up.weight", std::sqrt(3.0) * 0.5 / 8);
    for (const char* name : {"blocks.0.attn.out.weight", "blocks.1.mlp.down.weight", "head.weight"}) {
        EXPECT_EQ(largest_of(initial_values(h, name, 1)), 0) << name;
    }
    EXPECT_EQ(initial_values(h, "blocks.0.mix", 1), (Values{1, 0}));
    EXPECT_EQ(initial_values(h, "blocks.1.attn.value_mix", 1), (Values{0.5, 0.5}));
}

TEST(InitialValuesTest, ModernWithoutZerosScaled) {
    const ModelConfig model =
        model_config("modern", 2, 64, 257, together({{"model.init_scale=2"}, nonzero_outputs()}));
    ModelHarness h(model, 32, 32);
    expect_deviation(h, "embed.weight", 2);
    expect_uniform(h, "blocks.1.mlp.down.weight", std::sqrt(3.0) / 16);  // fan-in 256
    expect_uniform(h, "head.weight", std::sqrt(3.0) / 8);
}

// The modern preset starts with a zero head: all logits are 0 and the loss is exactly ln(vocabulary). Padding rows in
// the softmax would change it.
TEST(InitialValuesTest, FirstLossIsLogOfVocabulary) {
    const ModelConfig model = model_config("modern", 2, 64, 257);
    ModelHarness h(model, 32, 32);
    h.model.parameters().initialize(3);
    HostBatch batch = random_batch(model, 1, 32, true, 1);
    for (int32_t& target : batch.targets) target = std::max(target, 0);
    EXPECT_NEAR(h.forward_loss(batch) / 32, std::log(257.0), 1e-6);
}

TEST(InitialValuesTest, DependOnSeedAndParameterOnly) {
    const ModelConfig model = model_config("gpt2", 2, 64, 257);
    ModelHarness h(model, 32, 32), other(model, 64, 32);
    const std::string first = "blocks.0.attn.qkv.weight", second = "blocks.1.attn.qkv.weight";
    const Values values = initial_values(h, first, 7);
    EXPECT_EQ(initial_values(h, first, 7), values) << "again";
    EXPECT_EQ(initial_values(other, first, 7), values) << "in another model of the same config";
    const auto shared = [](const Values& a, const Values& b) {
        size_t count = 0;
        for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
        return count;
    };
    // 12288 pairs of independent floats; hardly any are equal by chance.
    EXPECT_LT(shared(values, initial_values(h, first, 8)), 5u);
    EXPECT_LT(shared(values, initial_values(h, first, (uint64_t{1} << 32) + 7)), 5u)
        << "the seed's upper half counts";
    EXPECT_LT(shared(values, initial_values(h, second, 7)), 5u);
}

TEST(InitialValuesTest, ComputeCopiesAreRoundedMasters) {
    ModelHarness h(model_config("gpt2", 2, 64, 257), 32, 32, DType::bf16);
    h.model.parameters().initialize(7);
    for (const Parameter& p : h.table().all()) {
        Values expected = h.read(h.model.parameters().master(p));
        const Tensor copy = h.model.parameters().compute_flat(p);
        EXPECT_EQ(copy.dtype, p.is_matrix() ? DType::bf16 : DType::f32) << p.name;
        if (p.is_matrix()) {
            for (double& value : expected) value = Bf16(static_cast<float>(value));
        }
        EXPECT_EQ(h.read(copy), expected) << p.name;
    }
}

}  // namespace speedrun::testing::parameter_table_test
