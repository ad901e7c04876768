// Sums at every slot of a model, with factors of every kind. Losses and all gradients against formulas in float64; refused terms.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/errors.h"
#include "tests/train/twin_model.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"
#include "train/model/parts/networks.h"
#include "train/model/sign_bits.h"

namespace speedrun::testing::sum_test {

using Settings = std::vector<std::string>;
// Rows of signs have two words of 32 columns.
constexpr int64_t kRows = 2, kSequence = 9, kWidth = 40, kPairs = 23, kSigns = 5;

// With a window of 1, attention returns v.
Config config_of(const Settings& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 40, "vocab_size": 40,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "more": {"rows": "ngrams", "hash": "products", "num_rows": 23, "sign_rows": 5},
                       "values": {"init": {"type": "normal", "value": 1}}},
            "networks": {"begin": {"hidden": 4}, "middle": {"input": "after 1", "hidden": 6}, "last": {"input": "after 2", "hidden": 5}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"},
                      {"type": "sum", "terms": [{"of": "stream"}, {"table": "more", "scale": 0.3, "network": "begin"}]}],
            "layers": {
                "count": 3,
                "each": {"attention": {"heads": 2, "window": "1", "rotary": null}, "mlp": {"ratio": 2}},
                "at": {"0": {"attention": {"value_table": "values", "value_gate": {"columns": 5}, "value_scale": true}},
                       "1": {"mlp": null, "attention": {"after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 1, "gain": 1.2}],
                                                        "value_scale": true, "values": [{"of": "after 0", "scale": 0.2}]}},
                       "2": {"enter": [{"terms": [{"of": "stream", "constant": 0.5}, {"of": "first", "scale": 0.3, "gate": 0.1}]},
                                       {"terms": [{"of": "stream", "scale": 1.1, "network": "middle"},
                                                  {"of": "input", "network": "middle", "scale": 0.1}, {"of": "after 0", "scale": 0.2},
                                                  {"table": "more", "scale": 0.7, "name": "pair"},
                                                  {"of": "first", "scale": -0.4, "constant": -2, "name": "pair"}]}],
                             "attention": {"value_table": "values", "value_gate": {"network": "middle", "start": 2},
                                           "values": [{"of": "input", "network": "middle"}, {"of": "stream", "network": "middle"},
                                                      {"table": "more", "scale": 0.4}],
                                           "after": [{"of": "stream", "scale": 1, "network": "middle"},
                                                     {"of": "output", "scale": 1, "gain": 0.8, "network": "middle"},
                                                     {"of": "input", "scale": 0}, {"table": "more", "network": "middle", "scale": 0.05}]},
                             "mlp": {"after": [{"of": "stream", "scale": 1, "network": "middle"},
                                               {"of": "output", "scale": 1, "network": "middle"}]}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "input", "network": "last"},
                                                 {"of": "after 0", "scale": -0.5, "network": "last"}, {"table": "values", "scale": 0.3},
                                                 {"of": "first", "network": "last"}]},
                       {"type": "norm"}],
            "head": {"softcap": 0}},
        "batch": {"sequence_length": 9, "microbatch_tokens": 18, "tokens_per_step": 18},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

struct Twin : TwinModel {
    using TwinModel::TwinModel;
    std::vector<int32_t> signs = sign_bits({kSigns, kWidth});

    Values token_row(const std::string& table, size_t t) const { return row(table, batch.tokens[t], kWidth); }
    // The row of the bigram that ends with this token, with its signs.
    Values pair(size_t t) const {
        if (batch.positions[t] == 0) return with_signs(row("more", kPairs - 1, kWidth), 0);
        const int64_t token = batch.tokens[t], before = batch.tokens[t - 1];
        // Products below 2^31, since tokens are below 50.
        return with_signs(row("more", (36313 * token ^ 27191 * before) % (kPairs - 1), kWidth),
                          (token ^ before) % kSigns);
    }
    Values with_signs(Values x, int64_t of) const {
        for (int64_t c = 0; c < kWidth; ++c) {
            const auto word = static_cast<uint32_t>(signs[static_cast<size_t>(of * 2 + c / 32)]);
            if (word >> (c % 32) & 1) x[static_cast<size_t>(c)] *= -1;
        }
        return x;
    }
    Values values(const std::string& block, const Values& x) const {
        const Values qkv = product(p.at(block + "attn.qkv.weight"), normed(x));
        return {qkv.begin() + 2 * kWidth, qkv.end()};
    }
    Values losses() const override {
        Values losses;
        for (size_t t = 0; t < batch.tokens.size(); ++t) losses.push_back(cross_entropy_of(stream(t), t));
        return losses;
    }
    Values stream(size_t t) const {
        const Values x0 = normed(token_row("embed", t)), more = pair(t);
        Values c0 = x0;
        add(c0, 1, network("begin", 0.1, x0)[0], more);
        Values x = c0;
        Values v = values("blocks.0.", x);
        const Values rows = token_row("values", t), n0 = normed(x);
        Values beside(n0.begin(), n0.begin() + 5);
        beside.insert(beside.end(), rows.begin(), rows.begin() + 5);
        Values gates = product(p.at("blocks.0.attn.value_gate.weight"), beside);
        for (double& g : gates) g = 2 / (1 + std::exp(-g));
        const double a = number("blocks.0.attn.value_scale");
        for (size_t i = 0; i < kWidth; ++i) v[i] = a * v[i] + gates[i / (kWidth / 2)] * rows[i];
        add(x, 1, 1, product(p.at("blocks.0.attn.out.weight"), v));
        add(x, 1, 1, mlp("blocks.0.", x));
        const Values c1 = x;
        v = values("blocks.1.", x);
        add(v, number("blocks.1.attn.value_scale"), number("blocks.1.attn.value_after_0_scale"), c1);
        add(x, number("blocks.1.attn.stream_scale"),
            number("blocks.1.attn.output_scale") * number("blocks.1.attn.output_gain"),
            product(p.at("blocks.1.attn.out.weight"), v));

        // In the order of the sums: enter, values, after.
        const Values m = network("middle", 0.1, x);
        const double s = number("blocks.2.enter.first_gate");
        add(x, 0.5, number("blocks.2.enter.first_scale") / (1 + std::exp(-s)), x0);
        add(x, m[0], m[1], c0);
        add(x, 1, number("blocks.2.enter.after_0_scale"), c1);
        add(x, 1, number("blocks.2.pair", 0), more);
        add(x, 1, -2 * number("blocks.2.pair", 1), x0);
        v = values("blocks.2.", x);
        for (size_t i = 0; i < kWidth; ++i) v[i] += m[i < kWidth / 2 ? 2 : 3] * rows[i];
        add(v, 1, m[4], c0);
        add(v, 1, m[5], x);
        add(v, 1, number("blocks.2.attn.value_more_scale"), more);
        add(x, m[6], m[7] * number("blocks.2.attn.output_gain"),
            product(p.at("blocks.2.attn.out.weight"), v));
        add(x, 1, number("blocks.2.attn.input_scale"), c0);
        add(x, 1, m[8], more);
        add(x, m[9], m[10], mlp("blocks.2.", x));

        const Values n = network("last", 0.1, x);
        add(x, 1, n[0], c0);
        add(x, 1, n[1], c1);
        add(x, 1, number("output.values_scale"), rows);
        add(x, 1, n[2], x0);
        return x;
    }
};

TEST(SumTest, ModelMatchesFormulas) {
    const ModelConfig model = config_of().model;
    const auto start = [](const Parameter& p, std::mt19937_64& random) {
        if (p.name.ends_with(".bias")) return normal_values(p, 8, 1, random);
        return p.numel() == 1 ? normal_values(p, 0.6, 0.1, random) : normal_values(p, 0, 0.3, random);
    };
    // Roundings of f32 in sums over 18 tokens of 40 columns.
    expect_twin({model, kRows, kSequence, start, [](const Parameter&) { return 2e-5; }},
                [&](const HostBatch& batch) { return std::make_unique<Twin>(batch, model); });
}

// A table of bigrams with signs may be an input too, as other tables of n-grams.
TEST(SumTest, InputTableUsesSigns) {
    const ModelConfig model =
        config_of(
            {R"(model.tables={"embed": {}, "more": {"rows": "ngrams", "hash": "products", "num_rows": 23, "sign_rows": 5}})",
             R"(model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "more"}])",
             R"(model.layers={"count": 1, "each": {"attention": null, "mlp": {"ratio": 1}}})",
             R"(model.output=[{"type": "norm"}])", "model.networks={}"})
            .model;
    ModelHarness h(model, kRows * kSequence, kSequence);
    h.randomize(0.3, 5);
    const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    Twin twin{batch, model};
    for (const Parameter& p : h.table().all()) twin.p[p.name] = h.read(h.model.parameters().master(p));
    h.forward_loss(batch);
    const Values losses = h.read(h.model.losses());
    for (size_t t = 0; t < losses.size(); ++t) {
        Values x = twin.token_row("embed", t);
        add(x, 1, 1, twin.pair(t));
        add(x, 1, 1, twin.mlp("blocks.0.", x));
        EXPECT_NEAR(losses[t], twin.cross_entropy_of(x, t), 1e-5) << "token " << t;
    }
}

TEST(SumTest, SumIsOneNode) {
    const ModelConfig model = config_of().model;
    const ModelGraph written =
        build_model(model, {.tokens = 18, .sequence_length = kSequence}, {.logit_rows = 18});
    const auto nodes = layer_table(written.graph).back().nodes;
    EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                            [](const std::string& n) { return n.starts_with("sum of"); }),
              1)
        << fmt::format("{}", fmt::join(nodes, "; "));
    std::vector<std::string> names;
    for (const NetworkOutputs& n : network_outputs(model.parts)) names.push_back(n.name);
    EXPECT_EQ(names, (std::vector<std::string>{
                         "input.more_scale", "blocks.2.enter.stream_scale", "blocks.2.enter.input_scale",
                         "blocks.2.attn.value_gate", "blocks.2.attn.value_input_scale",
                         "blocks.2.attn.value_stream_scale", "blocks.2.attn.stream_scale",
                         "blocks.2.attn.output_scale", "blocks.2.attn.more_scale",
                         "blocks.2.mlp.stream_scale", "blocks.2.mlp.output_scale", "output.input_scale",
                         "output.after_0_scale", "output.first_scale"}));
}

void expect_refused(const Settings& settings, const std::string& text) {
    expect_error(ExitCode::usage, {text}, [&] { parameters_of(config_of(settings).model, kSequence); });
}

TEST(SumTest, ScalesWithOneNameFormVector) {
    const ParameterTable table = parameters_of(config_of().model, kSequence);
    EXPECT_EQ(table.find("blocks.2.pair").shape, (std::vector<int64_t>{2}));
    EXPECT_EQ(table.find("blocks.2.pair").init.elements, (std::vector<float>{0.7F, -0.4F}));
    EXPECT_EQ(table.find("blocks.2.enter.after_0_scale").init.value, 0.2F);
    EXPECT_EQ(table.find("blocks.1.attn.output_gain").init.value, 1.2F);
    EXPECT_FALSE(table.contains("blocks.0.attn.stream_scale")) << "stream + output has no parameter";
    EXPECT_EQ(table.find("more.weight").uses, (std::vector<UnitUse>{{0, false}})) << "looked up once";
}

TEST(SumTest, RejectsInvalidTerms) {
    const std::string one = "model.layers.at.1.",
                      values = one + "attention.values=", after = one + "attention.after=",
                      enter = "model.layers.at.2.enter=", output = "model.output=";
    const std::pair<std::string, const char*> cases[] = {
        {values + R"([{"of": "after 1"}])",
         "layer 1: attention.values[0].of \"after 1\": layer 1 precedes this place"},
        {values + R"([{"of": "after 7"}])", "attention.values[0].of \"after 7\": there are layers 0 to 2"},
        {values + R"([{"of": "behind"}])", "attention.values[0].of: \"behind\" is no place of the stream"},
        {values + R"([{"of": "after 0", "scale": 0}, {"of": "after 0", "scale": 1}])",
         "attention.values[1]: the number attn.value_after_0_scale belongs to another term"},
        {values + R"([{"of": "after 0", "table": "more"}])",
         "a term has one source, not of \"after 0\" and table \"more\""},
        {values + "[{}]", "a term has one source, not of \"\" and table \"\""},
        {values + R"([{"table": "mor"}])",
         "attention.values[0].table: no table \"mor\" in model.tables, did you mean more?"},
        {values + R"([{"table": "embed"}])", "\"embed\" is in model.input as a table, which adds it already"},
        {"model.layers.at.2.attention.values="
         R"([{"table": "values"}])",
         "value_table: \"values\" is a term of a sum too"},
        {values + R"([{"of": "output"}])", "the source \"output\" belongs to attention.after and mlp.after"},
        {values +
             R"([{"of": "first"}, {"of": "first"}, {"of": "first"}, {"of": "first"}, {"of": "first"}, {"of": "first"}, {"of": "first"}])",
         "attention.values: 7 terms, at most 6 are possible"},
        {after + R"([{"of": "output", "gain": 2}])", "attention.after[0].gain 2: without a scale, use scale"},
        {after + R"([{"of": "output", "scale": 1, "gain": 2, "gate": 3}])",
         "gain 2 and gate 3: one of them is possible"},
        {after + R"([{"of": "output", "name": "x"}])", "name \"x\": the term has 0 learned numbers"},
        {after + R"([{"of": "output", "scale": 1, "gain": 1, "name": "x"}])",
         "name \"x\": the term has 2 learned numbers"},
        {after + R"([{"of": "output", "scale": 1, "name": "a*"}])", "letters, digits, _ and . are possible"},
        {after + R"([{"of": "output", "gate": 1, "name": "x"}, {"of": "stream", "scale": 1, "name": "x"}])",
         "attention.after[1]: the number x belongs to another term"},
        {after + R"([{"of": "stream", "scale": 1, "name": "attn.qkv.weight"}])",
         "two parameters have the name blocks.1.attn.qkv.weight"},
        {after + R"([{"of": "stream", "network": "middle"}])",
         "layer 1: attention.after[0].network: \"middle\" reads the output of layer 1, which is"},
        {enter + "[{}]", "layer 2: enter[0].terms: a sum needs a term"},
        {enter + R"([{"terms": [{"of": "first", "scale": 0}]}, {"terms": [{"of": "first", "scale": 0}]}])",
         "enter[1].terms[0]: the number enter.first_scale belongs to another term"},
        {output + R"([{"type": "sum"}])", "model.output[0].terms: a sum needs a term"},
        {output + R"([{"type": "sum", "terms": [{"of": "after 3"}]}])", "there are layers 0 to 2"},
        {"model.input.2.terms="
         R"([{"of": "input"}])",
         "model.input[2].terms[0].of \"input\": model.input precedes this place"},
        {"model.input.2.terms="
         R"([{"table": "values"}, {"table": "embed"}])",
         "\"embed\" is in model.input"},
        {R"(model.input=[{"type": "table", "table": "embed"}, {"type": "sum", "terms": [{"of": "stream"}]}, {"type": "norm"}])",
         "model.input[2]: norm after a sum: sums follow all other types"},
        {"model.networks.begin.input=input",
         "model.input[2].terms[1].network: \"begin\" reads \"input\", which is not computed yet: its input must be \"first\""},
    };
    for (const auto& [setting, text] : cases) {
        SCOPED_TRACE(setting);
        expect_refused({setting}, text);
    }
    for (const auto& [rows, text] :
         {std::pair(R"({"rows": "ngrams", "max_ngram": 3})", "up to 3-grams: a sum reads"),
          std::pair(R"({"rows": "positions"})", "rows for positions: a sum reads")})
        expect_refused({std::string("model.tables.more=") + rows}, text);
}

// Configs of records name removed keys with a value without effect. Other values are refused with the new form.
TEST(SumTest, RemovedKeyErrorsShowNewForm) {
    const std::string layer = "model.layers.each.";
    config_of({layer + "mix=null", layer + "attention.join=null", layer + "attention.add_to_values=[]",
               layer + "attention.out_scale=0.0", layer + "mlp.join=null", "model.skips=[]",
               "model.input.0.of=", "model.input.0.network=", "model.input.0.layer=0"});
    const std::pair<std::string, const char*> cases[] = {
        {layer + "mix={}", "\"name\": \"mix\"}"},
        {layer + "attention.join={}", "\"after\": [{\"of\": \"stream\", \"scale\": 1}"},
        {layer + R"(attention.add_to_values=[{"of": "first"}])", "\"values\": [{"},
        {layer + "attention.out_scale=1", "\"gain\": 1}"},
        {layer + "mlp.join={}", "{\"of\": \"output\", \"scale\": 1}]"},
        {R"(model.skips=[{"from": 0, "to": 2}])", "\"gate\": -1.5}]}]"},
        {R"(model.output=[{"type": "backout", "layer": 0}])",
         "expected table | smear | norm | sum, got \"backout\""},
        {R"(model.output=[{"type": "sum", "of": "first"}])", "{\"type\": \"sum\", \"terms\": ["},
    };
    for (const auto& [setting, text] : cases) {
        SCOPED_TRACE(setting);
        expect_refused({setting}, text);
    }
}

TEST(SumTest, RejectsUnusedValueTables) {
    const std::string gate = "model.layers.at.2.attention.value_gate.";
    expect_refused({gate + "network="}, "value_gate.start 2: a gate by sigmoid starts at 1; name a network");
    expect_refused({"model.layers.at.0.attention.value_table="},
                   "there are no rows that it could weigh, name a value_table");
    expect_refused(
        {"model.layers.at.0.attention.value_start=0.3", "model.layers.at.0.attention.value_scale=false"},
        "with a value_gate v has no factor, unless value_scale is true");
    expect_refused({"model.layers.at.2.attention.heads=5"}, "5 heads have no halves");
}

}  // namespace speedrun::testing::sum_test
