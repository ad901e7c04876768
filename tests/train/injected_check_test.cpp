// What is added from other places of the model, by factors that are learned or that networks compute for each token: to the
// stream, to values, behind the last layer. Losses and every gradient against formulas in float64; what is refused.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "kernels/device/error.h"
#include "tests/errors.h"
#include "tests/train/model_harness.h"
#include "tests/train/rows.h"
#include "train/config/config_json.h"
#include "train/config/network_numbers.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"

namespace speedrun::testing {
namespace injected_check_test {

using Settings = std::vector<std::string>;
constexpr int64_t kRows = 2, kSequence = 9, kWidth = 24, kVocabulary = 40;

// Attention within a window of 1 is its values.
Config config_of(const Settings& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 24, "vocab_size": 40,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "more": {"init": {"type": "normal", "value": 1}},
                       "values": {"init": {"type": "normal", "value": 1}}},
            "networks": {"begin": {"hidden": 4}, "middle": {"input": "after 1", "hidden": 6}, "last": {"input": "after 2", "hidden": 5}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"},
                      {"type": "inject", "table": "more", "start": 0.3, "network": "begin"}],
            "layers": {
                "count": 3,
                "each": {"attention": {"heads": 2, "window": "1", "rotary": null}, "mlp": {"ratio": 2}},
                "at": {"0": {"attention": {"value_table": "values", "value_gate": {"columns": 5}, "value_scale": true}},
                       "1": {"mlp": null, "attention": {"join": {}, "out_scale": 1.2, "value_scale": true, "add_to_values": [{"of": "after 0", "start": 0.2}]}},
                       "2": {"mix": {"start": 1.1, "network": "middle",
                                     "add": [{"of": "input", "network": "middle", "start": 0.1}, {"of": "after 0", "start": 0.2}]},
                             "attention": {"value_table": "values", "value_gate": {"network": "middle", "start": 2},
                                           "add_to_values": [{"of": "input", "network": "middle"}, {"of": "stream", "network": "middle"},
                                                             {"table": "more", "start": 0.4}],
                                           "out_scale": 0.8,
                                           "join": {"network": "middle",
                                                    "inject": [{"of": "input"}, {"table": "more", "network": "middle", "start": 0.05}]}},
                             "mlp": {"join": {"network": "middle"}}}}},
            "output": [{"type": "add", "of": "input", "network": "last"}, {"type": "add", "of": "after 0", "start": -0.5, "network": "last"},
                       {"type": "add", "table": "values", "start": 0.3}, {"type": "add", "of": "first", "network": "last"},
                       {"type": "norm"}],
            "head": {"softcap": 0}},
        "batch": {"sequence_length": 9, "microbatch_tokens": 18, "tokens_per_step": 18},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

void add(Values& x, double a, double b, const Values& y) {  // x ← a·x + b·y
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * y[i];
}

struct Twin {
    const HostBatch& batch;
    std::map<std::string, Values> p = {};

    Values row(const std::string& table, size_t token) const {
        const auto begin = p.at(table + ".weight").begin() + batch.tokens[token] * kWidth;
        return {begin, begin + kWidth};
    }
    double number(const std::string& name, size_t element = 0) const { return p.at(name).at(element); }
    Values network(const std::string& name, const Values& u) const {
        Values hidden = product(p.at("networks." + name + ".up.weight"), u);
        for (double& h : hidden) h *= 0.5 * std::erfc(-h / std::sqrt(2.0));
        Values out = product(p.at("networks." + name + ".down.weight"), hidden);
        add(out, 0.1, 0.1, p.at("networks." + name + ".bias"));
        return out;
    }
    Values values(const std::string& block, const Values& x) const {
        const Values qkv = product(p.at(block + "attn.qkv.weight"), normed(x));
        return {qkv.begin() + 2 * kWidth, qkv.end()};
    }
    Values mlp(const std::string& block, const Values& x) const {
        Values hidden = product(p.at(block + "mlp.up.weight"), normed(x));
        for (double& h : hidden) h = h > 0 ? h * h : 0;
        return product(p.at(block + "mlp.down.weight"), hidden);
    }
    double loss(size_t t) const {
        const int32_t target = batch.targets[t];
        if (target < 0) return 0;
        const Values x0 = normed(row("embed", t)), more = row("more", t);
        Values c0 = x0;
        add(c0, 1, network("begin", x0)[0], more);
        Values x = c0;
        Values v = values("blocks.0.", x);
        const Values rows = row("values", t), n0 = normed(x);
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
            number("blocks.1.attn.output_scale") * number("blocks.1.attn.out_scale"),
            product(p.at("blocks.1.attn.out.weight"), v));

        // In the order in which they are read: mix, values, join.
        const Values m = network("middle", x);
        add(x, m[0], m[1], c0);
        add(x, 1, number("blocks.2.mix.after_0_scale"), c1);
        v = values("blocks.2.", x);
        for (size_t i = 0; i < kWidth; ++i) v[i] += m[i < kWidth / 2 ? 2 : 3] * rows[i];
        add(v, 1, m[4], c0);
        add(v, 1, m[5], x);
        add(v, 1, number("blocks.2.attn.value_more_scale"), more);
        add(x, m[6], m[7] * number("blocks.2.attn.out_scale"), product(p.at("blocks.2.attn.out.weight"), v));
        add(x, 1, number("blocks.2.attn.input_scale"), c0);
        add(x, 1, m[8], more);
        add(x, m[9], m[10], mlp("blocks.2.", x));

        const Values n = network("last", x);
        add(x, 1, n[0], c0);
        add(x, 1, n[1], c1);
        add(x, 1, number("output.values_scale"), rows);
        add(x, 1, n[2], x0);
        const Values z = product(p.at("head.weight"), normed(x));
        double sum = 0;
        for (size_t i = 0; i < kVocabulary; ++i) sum += std::exp(z[i]);
        return std::log(sum) - z[static_cast<size_t>(target)];
    }
    double loss() const {
        double sum = 0;
        for (size_t t = 0; t < batch.tokens.size(); ++t) sum += loss(t);
        return sum;
    }
};

TEST(InjectedPlacesTest, TheWholeModelIsItsFormulas) {
    for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
        const ModelConfig model = config_of().model;
        ModelHarness h(model, kRows * kSequence, kSequence, DType::f32, {},
                       {.activation_checkpointing = checkpointing});
        const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
        Twin twin{batch};
        std::mt19937_64 random(5);
        std::normal_distribution<double> normal;
        for (const Parameter& p : h.table().all()) {
            Values values(static_cast<size_t>(p.numel()));
            for (double& v : values)
                v = static_cast<float>(p.numel() == 1 ? 0.6 + 0.1 * normal(random) : 0.3 * normal(random));
            if (p.name.ends_with(".bias"))
                for (double& v : values) v = static_cast<float>(8 + normal(random));
            h.set(p, values);
            twin.p[p.name] = std::move(values);
        }
        h.tracker.begin_step();
        h.backward(batch, 1);
        const Values losses = h.read(h.model.losses());
        // A loss is a few dozen roundings of 6e-8.
        for (size_t t = 0; t < losses.size(); ++t)
            EXPECT_NEAR(losses[t], twin.loss(t), 2e-5) << "token " << t;
        for (const Parameter& p : h.table().all()) {
            const Values gradient = h.gradient(p);
            EXPECT_GT(norm_of(gradient), 0) << p.name;
            for (int trial = 0; trial < 3; ++trial) {
                Values& values = twin.p.at(p.name);
                const Values start = values;
                Values direction(values.size());
                for (double& d : direction) d = normal(random);
                const double given =
                    std::inner_product(direction.begin(), direction.end(), gradient.begin(), 0.0);
                constexpr double kStep = 1e-5;
                const auto at = [&](double step) {
                    for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + step * direction[i];
                    return twin.loss();
                };
                const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
                values = start;
                // f32's roundings of the engine, which sums over 18 tokens; the quotient of float64 errs by 1e-8.
                EXPECT_NEAR(given, slope, 5e-5 * norm_of(gradient) + 1e-5) << p.name;
            }
        }
    }
}

TEST(InjectedPlacesTest, NeighboursOfTheOutputAreOneSum) {
    const ModelConfig model = config_of().model;
    const ModelGraph written =
        build_model(model, {.tokens = 18, .sequence_length = kSequence}, {.logit_rows = 18});
    const auto nodes = layer_table(written.graph).back().nodes;
    EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                            [](const std::string& n) { return n.starts_with("sum of"); }),
              1)
        << fmt::format("{}", fmt::join(nodes, "; "));
    std::vector<std::string> names;
    for (const NetworkNumbers& n : network_numbers(model.parts)) names.push_back(n.name);
    EXPECT_EQ(names, (std::vector<std::string>{
                         "inject.more", "blocks.2.mix.stream_scale", "blocks.2.mix.input_scale",
                         "blocks.2.attn.value_gate", "blocks.2.attn.value_input_scale",
                         "blocks.2.attn.value_stream_scale", "blocks.2.attn.stream_scale",
                         "blocks.2.attn.output_scale", "blocks.2.attn.more_scale",
                         "blocks.2.mlp.stream_scale", "blocks.2.mlp.output_scale", "output.input_scale",
                         "output.after_0_scale", "output.first_scale"}));
}

void expect_refused(const Settings& settings, const std::string& text) {
    expect_error(ExitCode::usage, {text}, [&] { config_of(settings); });
}

TEST(InjectedPlacesTest, WhatCannotBeIsRefused) {
    const std::string values = "model.layers.at.1.attention.add_to_values=", mix = "model.layers.at.2.mix.";
    expect_refused(
        {values + R"([{"of": "after 1"}])"},
        "layer 1: attention.add_to_values[0].of \"after 1\": what layer 1 gives is not there in layer 1 yet");
    expect_refused({values + R"([{"of": "behind"}])"}, "\"behind\" is no place of the stream");
    expect_refused({values + R"([{"of": "after 0"}, {"of": "after 0"}])"}, "[1]: \"after 0\" is added twice");
    expect_refused({values + R"([{"of": "after 0", "table": "more"}])"}, "one value is added, name one");
    expect_refused({values + R"([{"table": "mor"}])"},
                   "no table \"mor\" in model.tables, did you mean more?");
    expect_refused({mix + R"(add=[{"of": "stream"}])"},
                   "mix.add[0].of: the stream itself has a factor of its own here");
    const std::string gate = "model.layers.at.2.attention.value_gate.";
    expect_refused({gate + "network="}, "value_gate.start 2: a gate by sigmoid starts at 1; name a network");
    expect_refused({"model.layers.at.0.attention.value_table="},
                   "there are no rows that it could weigh, name a value_table");
    expect_refused(
        {"model.layers.at.0.attention.value_start=0.3", "model.layers.at.0.attention.value_scale=false"},
        "with a value_gate v has no factor, unless value_scale is true");
    expect_refused({"model.layers.at.0.attention.out_scale=1"},
                   "layer 0: attention.out_scale 1: a factor beside p of a join, which is not there");
    expect_refused(
        {"model.networks.begin.input=input"},
        "model.input[2].network: \"begin\" reads \"input\", which is not there yet: its input must be \"first\"");
    expect_refused({"model.input.0.network=begin"}, "model.input[0]: network is for inject, not for table");
    expect_refused({"model.layers.at.2.attention.heads=3"}, "3 heads have no halves");
    expect_refused({mix + "add=[]"}, "mix.network \"middle\": say what is added (add)");
    expect_refused({R"(model.output=[{"type": "add"}])"}, "model.output[0]: say what is added, of or table");
    expect_refused({R"(model.output=[{"type": "norm", "network": "last"}])"},
                   "of and network are for add, not for norm");
    expect_refused({R"(model.input=[{"type": "table", "table": "embed"}, {"type": "add", "of": "first"}])"},
                   "add is for model.output; here it is inject");
    expect_refused(
        {R"(model.layers.at.0.attention={"heads": 2, "join": {"network": "middle"}})"},
        "layer 0: attention.join.network: \"middle\" reads what layer 1 gives, which is not there in layer 0 yet");
}

}  // namespace injected_check_test
}  // namespace speedrun::testing
