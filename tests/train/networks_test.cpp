// Networks that compute factors per token: losses and all gradients against float64 formulas; errors of bad configs.
#include "tests/errors.h"
#include "train/model/layers.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/train/twin_model.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"

namespace speedrun::testing::networks_test {

using Settings = std::vector<std::string>;
constexpr int64_t kRows = 2, kSequence = 9, kWidth = 24, kHeads = 2, kHead = kWidth / kHeads;
// Layer 2 reads layer 0's output. Network "early" supplies layer 0's XSA factors, gates and scales of terms.
// Network "joins" reads the model's input and supplies the scales of layer 1's MLP sum. Network "late" reads layer 1's
// output and supplies a skip, XSA factors and composed heads. "early" and "late" share one learned scale.
Config config_of(const Settings& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 24, "vocab_size": 40,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}, "more": {"init": {"type": "normal", "value": 1}}},
            "networks": {"early": {"hidden": 5, "learned_scale": "gates"},
                         "late": {"input": "after 1", "hidden": 7, "learned_scale": "gates"},
                         "joins": {"input": "input", "hidden": 3, "scale": 0.5}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"},
                      {"type": "sum", "terms": [{"of": "stream"}, {"table": "more", "scale": 0.3}]}],
            "layers": {
                "count": 4,
                "each": {"attention": {"heads": 2, "window": "0", "rotary": null, "qk_norm": false},
                         "mlp": {"ratio": 2}},
                "at": {"0": {"mlp": null, "attention": {
                                "exclude_own_value": {"start": 0.2, "network": "early"},
                                "gate": {"network": "early", "start": 0.25},
                                "after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 0.9}, {"of": "first", "network": "early"},
                                          {"table": "more", "scale": 0.05, "network": "early"}]}},
                       "1": {"attention": null, "mlp": {"after": [{"of": "stream", "scale": 1.1, "network": "joins"}, {"of": "output", "scale": 1, "network": "joins"}]}},
                       "2": {"attention": {"reads": "after 0", "exclude_own_value": {"network": "late"}, "gate": {"columns": 6},
                                           "compose_heads": {"keys": 4, "maps_start": 0.8, "output_start": 0.1, "network": "late"}}},
                       "3": {"enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "scale": 0.5, "network": "late", "gate": -0.5}]}],
                             "attention": null}}},
            "output": [{"type": "norm"}],
            "head": {"softcap": 0}},
        "batch": {"sequence_length": 9, "microbatch_tokens": 18, "tokens_per_step": 18},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

// Float64 reference. It processes all tokens of the batch together, because attention reads earlier tokens.
struct Twin : TwinModel {
    using TwinModel::TwinModel;
    using Stream = std::vector<Values>;

    // Head outputs and q, k, v by token.
    struct Heads {
        Stream out, q, k, v;
    };
    // Attention weights of the keys first … t.
    static Values map_of(const Heads& heads, size_t t, int64_t h, int64_t first) {
        Values map;
        double total = 0;
        for (auto s = static_cast<size_t>(first); s <= t; ++s) {
            double dot = 0;
            for (auto d = static_cast<size_t>(h * kHead); d < static_cast<size_t>((h + 1) * kHead); ++d)
                dot += heads.q[t][d] * heads.k[s][d];
            map.push_back(std::exp(dot / std::sqrt(double{kHead})));
            total += map.back();
        }
        for (double& w : map) w /= total;
        return map;
    }
    // out += factor * sum over i of map[i] * v[t + 1 - n + i] for head h, with n = map.size().
    static void see(Values& out, const Heads& heads, size_t t, int64_t h, const Values& map, double factor) {
        for (size_t i = 0; i < map.size(); ++i)
            for (auto d = static_cast<size_t>(h * kHead); d < static_cast<size_t>((h + 1) * kHead); ++d)
                out[d] += factor * map[i] * heads.v[t + 1 - map.size() + i][d];
    }
    // For output head h: the maps of all heads, weighted by RMS-normalised a, times b[h].
    void compose(Values& out, const Heads& heads, size_t t, const double* a, const double* b) const {
        const int64_t first = std::max<int64_t>(batch.first_key[t], static_cast<int64_t>(t) - 3);
        double square = 1e-5;
        for (int64_t h = 0; h < kHeads; ++h) square += a[h] * a[h] / kHeads;
        for (int64_t other = 0; other < kHeads; ++other) {
            const Values map = map_of(heads, t, other, first);
            for (int64_t h = 0; h < kHeads; ++h)
                see(out, heads, t, h, map, b[h] * a[other] / std::sqrt(square));
        }
    }
    Heads attend(const std::string& block, const Stream& x) const {
        Heads heads;
        Stream &q = heads.q, &k = heads.k;
        for (const Values& row : x) {
            const Values qkv = product(p.at(block + "attn.qkv.weight"), normed(row));
            q.emplace_back(qkv.begin(), qkv.begin() + kWidth);
            k.emplace_back(qkv.begin() + kWidth, qkv.begin() + 2 * kWidth);
            heads.v.emplace_back(qkv.begin() + 2 * kWidth, qkv.end());
        }
        for (size_t t = 0; t < x.size(); ++t) {
            Values out(kWidth);
            for (int64_t h = 0; h < kHeads; ++h) {
                const Values map = map_of(heads, t, h, batch.first_key[t]);
                see(out, heads, t, h, map, 1);
            }
            heads.out.push_back(out);
        }
        return heads;
    }
    static void exclude_own_value(Values& out, const Values& v, const double* alpha) {
        for (size_t h = 0; h < kHeads; ++h) {
            double square = 0, dot = 0;
            for (size_t d = h * kHead; d < (h + 1) * kHead; ++d) {
                square += v[d] * v[d];
                dot += out[d] * v[d];
            }
            for (size_t d = h * kHead; d < (h + 1) * kHead; ++d)
                out[d] -= std::tanh(alpha[h]) * dot / square * v[d];
        }
    }
    static void gate(Values& out, const double* gates) {
        for (size_t d = 0; d < kWidth; ++d) out[d] *= gates[d / kHead];
    }
    Values losses() const override {
        const size_t tokens = batch.tokens.size();
        const double scale = number("networks.gates");
        Stream x, x0, c0, early, late;
        for (size_t t = 0; t < tokens; ++t) {
            x0.push_back(normed(row("embed", batch.tokens[t], kWidth)));
            x.push_back(x0.back());
            add(x.back(), 1, number("input.more_scale"), row("more", batch.tokens[t], kWidth));
            early.push_back(network("early", scale, x0.back()));
        }
        c0 = x;
        // early: two injection factors, then XSA factors and gates of two heads each.
        const Heads first = attend("blocks.0.", x);
        for (size_t t = 0; t < tokens; ++t) {
            Values out = first.out[t];
            exclude_own_value(out, first.v[t], &early[t][2]);
            gate(out, &early[t][4]);
            add(x[t], number("blocks.0.attn.stream_scale"), number("blocks.0.attn.output_scale"),
                product(p.at("blocks.0.attn.out.weight"), out));
            add(x[t], 1, early[t][0], x0[t]);
            add(x[t], 1, early[t][1], row("more", batch.tokens[t], kWidth));
        }
        const Stream skipped = x;
        for (size_t t = 0; t < tokens; ++t) {
            const Values joins = network("joins", 0.5, c0[t]);
            add(x[t], joins[0], joins[1], mlp("blocks.1.", x[t]));
            late.push_back(network("late", scale, x[t]));
        }
        // late: skip factor, then XSA factors, map weights and output factors of two heads each.
        const Heads second = attend("blocks.2.", skipped);
        for (size_t t = 0; t < tokens; ++t) {
            Values out = second.out[t];
            compose(out, second, t, &late[t][3], &late[t][5]);
            exclude_own_value(out, second.v[t], &late[t][1]);
            const Values n = normed(skipped[t]);
            Values gates = product(p.at("blocks.2.attn.gate.weight"), {n.begin(), n.begin() + 6});
            for (double& g : gates) g = sigmoid(g);
            gate(out, gates.data());
            add(x[t], 1, 1, product(p.at("blocks.2.attn.out.weight"), out));
            add(x[t], 1, 1, mlp("blocks.2.", x[t]));
            add(x[t], 1, sigmoid(number("blocks.3.enter.after_0_gate")) * late[t][0], skipped[t]);
            add(x[t], 1, 1, mlp("blocks.3.", x[t]));
        }
        Values losses;
        for (size_t t = 0; t < tokens; ++t) losses.push_back(cross_entropy_of(x[t], t));
        return losses;
    }
};

TEST(NetworksTest, ModelMatchesFormulas) {
    const ModelConfig model = config_of().model;
    const auto start = [](const Parameter& p, std::mt19937_64& random) {
        return p.numel() == 1 ? normal_values(p, 0.6, 0.1, random) : normal_values(p, 0, 0.3, random);
    };
    // Roundings of f32 in sums over 18 tokens. Scalar stream factors also sum over 24 columns with much cancellation.
    const auto least = [](const Parameter& p) { return p.numel() == 1 ? 3e-5 : 1e-5; };
    expect_twin({model, kRows, kSequence, start, least},
                [&](const HostBatch& batch) { return std::make_unique<Twin>(batch, model); });
}

// With a zero second matrix, every output equals its start value for all tokens.
TEST(NetworksTest, ZeroNetworkEqualsStartValues) {
    const auto losses = [](const Settings& settings) {
        const ModelConfig model = config_of(settings).model;
        ModelHarness h(model, kRows * kSequence, kSequence);
        h.randomize(0.3, 7);
        for (const Parameter& p : h.table().all()) {  // seeded by name, independent of the table's order
            std::seed_seq name(p.name.begin(), p.name.end());
            std::mt19937 random(name);
            std::normal_distribution<double> normal;
            Values values(static_cast<size_t>(p.numel()));
            for (double& v : values) v = static_cast<float>(0.3 * normal(random));
            const bool of_network = p.name.starts_with("networks.");
            const bool starts = of_network || p.name.ends_with("_scale") || p.name.ends_with("own_value") ||
                                p.name.find("attn.composed") != std::string::npos;
            if (starts && p.init.kind == InitRule::Kind::constant) values.assign(values.size(), p.init.value);
            if (p.init.kind == InitRule::Kind::elements)
                values.assign(p.init.elements.begin(), p.init.elements.end());
            h.set(p, values);
        }
        h.forward_loss(random_batch(model, kRows, kSequence, true, 3));
        return h.read(h.model.losses());
    };
    const std::string at =
        R"(model.layers.at={"0": {"mlp": null, "attention": {"exclude_own_value": {"start": 0.2},)";
    const std::string rest =
        R"("after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 0.9}, {"of": "first", "scale": 0},
                     {"table": "more", "scale": 0.05}]}},
        "1": {"attention": null, "mlp": {"after": [{"of": "stream", "scale": 1.1}, {"of": "output", "scale": 1}]}},
        "2": {"attention": {"reads": "after 0", "exclude_own_value": {}, "gate": {"columns": 6},
                              "compose_heads": {"keys": 4, "maps_start": 0.8, "output_start": 0.1}}}, "3": {"enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "scale": 0.5, "network": "late", "gate": -0.5}]}], "attention": null}})";
    const std::string networks = R"(model.networks={"late": {"input": "after 1"}})";
    const Values with =
        losses({R"(model.networks={"early": {}, "late": {"input": "after 1"}, "joins": {"input": "input"}})",
                R"(model.layers.at.0.attention.gate=null)"});
    const Values without = losses({networks, at + rest});
    ASSERT_EQ(with.size(), without.size());
    for (size_t t = 0; t < with.size(); ++t) EXPECT_NEAR(with[t], without[t], 1e-5) << t;
}

TEST(NetworksTest, ListsOutputsInOrder) {
    const ModelConfig model = config_of().model;
    std::vector<std::string> numbers;
    for (const NetworkOutputs& n : network_outputs(model.parts))
        numbers.push_back(fmt::format("{} {} {}", n.network, n.name, n.count));
    EXPECT_EQ(numbers, (std::vector<std::string>{
                           "early blocks.0.attn.first_scale 1", "early blocks.0.attn.more_scale 1",
                           "joins blocks.1.mlp.stream_scale 1", "joins blocks.1.mlp.output_scale 1",
                           "late blocks.3.enter.after_0_scale 1", "early blocks.0.attn.own_value 2",
                           "early blocks.0.attn.gate 2", "late blocks.2.attn.own_value 2",
                           "late blocks.2.attn.composed_maps 2", "late blocks.2.attn.composed_output 2"}));
    const ParameterTable table = parameters_of(model, kSequence);
    const auto near = [](std::vector<float> values) {
        for (float& v : values) v = std::round(v * 1e4F) / 1e4F;
        return values;
    };
    EXPECT_EQ(near(table.find("networks.early.bias").init.elements),
              (std::vector<float>{0, 0.5, 2, 2, 2.5, 2.5}))
        << "times a scale of 0.1: the start values";
    EXPECT_EQ(near(table.find("networks.joins.bias").init.elements), (std::vector<float>{2.2F, 2}));
    EXPECT_EQ(table.find("networks.gates").init.value, 0.1F);
    EXPECT_EQ(table.find("networks.early.up.weight").shape, (std::vector<int64_t>{5, kWidth}));
    EXPECT_EQ(table.find("networks.late.down.weight").shape, (std::vector<int64_t>{7, 7}));
    EXPECT_FALSE(table.contains("networks.joins.scale"));
    for (const char* gone :
         {"blocks.0.attn.own_value", "blocks.0.attn.gate.weight", "blocks.0.attn.first_scale",
          "blocks.1.mlp.stream_scale", "blocks.2.attn.composed_maps", "blocks.2.attn.composed_output"})
        EXPECT_FALSE(table.contains(gone)) << gone;
    // Learned all the same: what names no network.
    for (const char* there :
         {"blocks.0.attn.stream_scale", "blocks.2.attn.gate.weight", "blocks.3.enter.after_0_gate"})
        EXPECT_TRUE(table.contains(there)) << there;
}

void expect_refused(const Settings& settings, const std::string& text) {
    expect_error(ExitCode::usage, {text}, [&] { config_of(settings); });
}

TEST(NetworksTest, RejectsInvalidNetworks) {
    const std::string at = "model.layers.at.";
    expect_refused(
        {at + "0.attention.gate.network=earli"},
        "layer 0: attention.gate.network: no network \"earli\" in model.networks, did you mean early?");
    expect_refused({R"(model.networks.unread={})"}, "model.networks.unread: nothing reads it");
    expect_refused({R"(model.networks.a b={})"}, "is no name");
    expect_refused({"model.networks.late.input=behind 1"},
                   "model.networks.late.input: \"behind 1\" is no place of the stream");
    expect_refused({"model.networks.late.input=after 9"}, "\"after 9\": there are layers 0 to 3");
    expect_refused(
        {"model.networks.late.input=after 2"},
        "attention.exclude_own_value.network: \"late\" reads the output of layer 2, which is not computed before "
        "layer 2");
    expect_refused(
        {"model.networks.late.scale=0.2"},
        "model.networks.late.scale 0.2: it shares the learned \"gates\" with \"early\", which has scale 0.1");
    expect_refused({at + "2.attention.gate.start=0.25"},
                   "attention.gate.start 0.25: a sigmoid gate starts at 0.5; name a network");
    expect_refused({at + "0.attention.heads=24", at + "0.attention.gate.network=early",
                    at + "2.attention.exclude_own_value.network=early", at + "2.attention.heads=24"},
                   "outputs per token, at most 64 are possible");
    expect_refused({R"(model.tables={"embed": {}, "more": {}, "networks.x": {}})"},
                   "parameters of that name belong to the model");
}

// Layers that read the same stream value share its norm, unless the norm has parameters.
TEST(NetworksTest, LayersShareNormOfSource) {
    const auto norms = [](const Settings& settings) {
        const ModelConfig model = config_of(settings).model;
        const ModelGraph written =
            build_model(model, {.tokens = 18, .sequence_length = kSequence}, {.logit_rows = 18});
        int64_t count = 0;
        for (const Value& value : written.graph.values()) count += value.name.ends_with("attn_norm") ? 1 : 0;
        return count;
    };
    const std::string both = R"(model.layers.at.3.attention={"heads": 2, "reads": "after 0"})";
    const std::string divided = "model.layers.at.2.attention.compose_heads=null";
    EXPECT_EQ(norms({}), 2);
    EXPECT_EQ(norms({both, divided}), 2);
    EXPECT_EQ(norms({both}), 3) << "one is for the layer with heads that tensor ranks cannot split";
    EXPECT_EQ(norms({both, divided, "model.norms.gain=true"}), 3);
    expect_refused({"model.layers.at.2.attention.reads=after 2"},
                   "layer 2: attention.reads \"after 2\": layer 2 precedes this place");
    expect_refused({"model.layers.at.2.attention.reads=after 7"}, "there are layers 0 to 3");
    expect_refused({"model.layers.at.2.attention.reads=7"}, "\"7\" is no place of the stream");
}

}  // namespace speedrun::testing::networks_test
