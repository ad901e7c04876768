// Tables in sums: hashed bigrams with signs, at the input and after sublayers, with learned factors, against the formulas of the
// whole model in float64.
// Covers: train/model/token_tables.cpp
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "tests/train/model_harness.h"
#include "tests/train/rows.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"
#include "train/model/sign_bits.h"

namespace speedrun::testing {
namespace sum_tables_test {

constexpr int64_t kRows = 3, kSequence = 10, kWidth = 40, kVocabulary = 50, kPairs = 23, kSigns = 5;

// With a window of 1, attention returns v, so that a layer is a few lines.
Config config_of(const std::vector<std::string>& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 40, "vocab_size": 50,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "pairs": {"rows": "ngrams", "hash": "products", "num_rows": 23, "sign_rows": 5}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"},
                      {"type": "sum", "terms": [{"of": "stream"}, {"table": "pairs", "scale": 0.05}]}],
            "layers": {
                "count": 3,
                "each": {"attention": {"heads": 2, "window": "1", "rotary": null,
                                       "after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 0.9}, {"of": "first", "scale": 0.1},
                                                 {"table": "pairs", "scale": 0.05}]},
                         "mlp": {"ratio": 2, "after": [{"of": "stream", "scale": 1.1}, {"of": "output", "scale": 1}]}},
                "at": {"0": {"attention": {"after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 0.9}, {"of": "first", "scale": 0}]}},
                       "2": {"attention": null}}},
            "output": [{"type": "norm"}],
            "head": {"softcap": 15}},
        "batch": {"sequence_length": 10, "microbatch_tokens": 30, "tokens_per_step": 30},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

using Row = Values;

// x ← a·x + b·y.
void add(Row& x, double a, double b, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * y[i];
}

struct Twin {
    std::map<std::string, Values> p;
    std::vector<int32_t> signs = sign_bits({kSigns, kWidth});

    double number(const std::string& name) const { return p.at(name)[0]; }
    Row row(const std::string& table, int64_t index) const {
        const auto begin = p.at(table).begin() + index * kWidth;
        return {begin, begin + kWidth};
    }
    Row pair(const HostBatch& batch, int64_t t) const {
        const auto at = static_cast<size_t>(t);
        if (batch.positions[at] == 0) return with_signs(row("pairs.weight", kPairs - 1), 0);
        const int64_t token = batch.tokens[at], before = batch.tokens[at - 1];
        // Tokens are below 50, so these products are below 2^31.
        return with_signs(row("pairs.weight", (36313 * token ^ 27191 * before) % (kPairs - 1)),
                          (token ^ before) % kSigns);
    }
    Row with_signs(Row x, int64_t of) const {
        for (int64_t c = 0; c < kWidth; ++c) {
            const auto word = static_cast<uint32_t>(signs[static_cast<size_t>(of * 2 + c / 32)]);
            if (word >> (c % 32) & 1) x[static_cast<size_t>(c)] = -x[static_cast<size_t>(c)];
        }
        return x;
    }
    double loss(const HostBatch& batch, int64_t t) const {
        const int32_t target = batch.targets[static_cast<size_t>(t)];
        if (target < 0) return 0;
        const Row x0 = normed(row("embed.weight", batch.tokens[static_cast<size_t>(t)])), b = pair(batch, t);
        Row x = x0;
        add(x, 1, number("input.pairs_scale"), b);
        for (int layer = 0; layer < 3; ++layer) {
            const std::string block = "blocks." + std::to_string(layer) + ".";
            if (layer < 2) {
                const Row qkv = product(p.at(block + "attn.qkv.weight"), normed(x));
                const Row out =
                    product(p.at(block + "attn.out.weight"), {qkv.begin() + 2 * kWidth, qkv.end()});
                add(x, number(block + "attn.stream_scale"), number(block + "attn.output_scale"), out);
                add(x, 1, number(block + "attn.first_scale"), x0);
                if (layer == 1) add(x, 1, number(block + "attn.pairs_scale"), b);
            }
            Row hidden = product(p.at(block + "mlp.up.weight"), normed(x));
            for (double& h : hidden) h = h > 0 ? h * h : 0;
            add(x, number(block + "mlp.stream_scale"), number(block + "mlp.output_scale"),
                product(p.at(block + "mlp.down.weight"), hidden));
        }
        const Row z = product(p.at("head.weight"), normed(x));
        double sum = 0;
        const auto capped = [&](int64_t v) { return 15 * std::tanh(z[static_cast<size_t>(v)] / 15); };
        for (int64_t v = 0; v < kVocabulary; ++v) sum += std::exp(capped(v));
        return std::log(sum) - capped(target);
    }
    double loss(const HostBatch& batch) const {
        double sum = 0;
        for (int64_t t = 0; t < kRows * kSequence; ++t) sum += loss(batch, t);
        return sum;
    }
};

TEST(SumTablesTest, TheWholeModelIsItsFormulas) {
    const ModelConfig model = config_of().model;
    ModelHarness h(model, kRows * kSequence, kSequence);
    Twin twin;
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    for (const Parameter& p : h.table().all()) {
        Values values(static_cast<size_t>(p.numel()));
        for (double& v : values)
            v = static_cast<float>(p.numel() == 1 ? 0.8 + 0.1 * normal(random) : 0.3 * normal(random));
        h.set(p, values);
        twin.p[p.name] = std::move(values);
    }
    const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    h.tracker.begin_step();
    h.backward(batch, 1);
    const Values losses = h.read(h.model.losses());
    // A loss accumulates a few dozen roundings of 6e-8.
    for (int64_t t = 0; t < kRows * kSequence; ++t)
        EXPECT_NEAR(losses[static_cast<size_t>(t)], twin.loss(batch, t), 1e-5) << "token " << t;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = h.gradient(p);
        for (int trial = 0; trial < 3; ++trial) {
            Values& values = twin.p.at(p.name);
            const Values start = values;
            Values direction(values.size());
            double expected = 0;
            for (size_t i = 0; i < direction.size(); ++i) {
                direction[i] = normal(random);
                expected += direction[i] * gradient[i];
            }
            constexpr double kStep = 1e-5;
            const auto at = [&](double step) {
                for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + step * direction[i];
                return twin.loss(batch);
            };
            const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
            values = start;
            // f32 roundings of the engine, which sums over 30 tokens. The float64 difference quotient errs by 1e-8.
            EXPECT_NEAR(expected, slope, 2e-5 * norm_of(gradient) + 1e-5) << p.name;
        }
    }
}

TEST(SumTablesTest, FactorsStartAsSaid) {
    const ModelConfig model = config_of().model;
    const ParameterTable table = parameters_of(model, kSequence);
    const auto start = [&](const std::string& name) { return table.find(name).init.value; };
    EXPECT_EQ(start("input.pairs_scale"), 0.05F);
    EXPECT_EQ(start("blocks.1.attn.stream_scale"), 1.05F);
    EXPECT_EQ(start("blocks.1.attn.output_scale"), 0.9F);
    EXPECT_EQ(start("blocks.1.attn.first_scale"), 0.1F);
    EXPECT_EQ(start("blocks.1.attn.pairs_scale"), 0.05F);
    EXPECT_EQ(start("blocks.0.mlp.stream_scale"), 1.1F);
    EXPECT_EQ(start("blocks.0.mlp.output_scale"), 1);
    EXPECT_EQ(start("blocks.0.attn.first_scale"), 0);
    EXPECT_FALSE(table.contains("blocks.0.attn.pairs_scale"));
    EXPECT_FALSE(table.contains("blocks.2.attn.stream_scale"));
    EXPECT_EQ(table.find("pairs.weight").uses, (std::vector<UnitUse>{{0, false}})) << "looked up once";
    const ModelGraph written =
        build_model(model, {.tokens = 30, .sequence_length = kSequence}, {.logit_rows = 30});
    const std::vector<Layer> layers = layer_table(written.graph);
    const auto expect_node = [&](size_t layer, const std::string& text) {
        const auto& nodes = layers[layer].nodes;
        EXPECT_EQ(std::count(nodes.begin(), nodes.end(), text), 1)
            << fmt::format("{}", fmt::join(nodes, "; "));
    };
    expect_node(0, "embedding 23 x 40, 5 rows of signs");
    expect_node(2, "sum of c0 x after mlp + c0 x attn.out + c0 x first + c0 x pairs");
}

// A table of bigrams with signs may enter as other tables of n-grams do, before the norm.
TEST(SumTablesTest, SignsGoWithTheTableWhereverItEnters) {
    const ModelConfig model =
        config_of(
            {R"(model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "pairs"}])",
             R"(model.layers={"count": 1, "each": {"attention": null, "mlp": {"ratio": 1}}})"})
            .model;
    ModelHarness h(model, kRows * kSequence, kSequence);
    h.randomize(0.3, 5);
    Twin twin;
    for (const Parameter& p : h.table().all()) twin.p[p.name] = h.read(h.model.parameters().master(p));
    const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    h.forward_loss(batch);
    const Values losses = h.read(h.model.losses());
    for (int64_t t = 0; t < kRows * kSequence; ++t) {
        const auto at = static_cast<size_t>(t);
        if (batch.targets[at] < 0) continue;
        Row x = twin.row("embed.weight", batch.tokens[at]);
        add(x, 1, 1, twin.pair(batch, t));
        Row hidden = product(twin.p.at("blocks.0.mlp.up.weight"), normed(x));
        for (double& v : hidden) v = v > 0 ? v * v : 0;
        add(x, 1, 1, product(twin.p.at("blocks.0.mlp.down.weight"), hidden));
        const Row z = product(twin.p.at("head.weight"), normed(x));
        double sum = 0;
        for (size_t v = 0; v < kVocabulary; ++v) sum += std::exp(15 * std::tanh(z[v] / 15));
        EXPECT_NEAR(losses[at],
                    std::log(sum) - 15 * std::tanh(z[static_cast<size_t>(batch.targets[at])] / 15), 1e-5);
    }
}

}  // namespace sum_tables_test
}  // namespace speedrun::testing
