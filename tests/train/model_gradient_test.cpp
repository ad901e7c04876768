// Backward against finite differences of forward, for the whole model in f32, along random directions of each
// parameter. Covers all switches, including those without a committed fixture.
// Covers: train/model/nodes/*.cpp
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"

namespace speedrun::testing::model_gradient_test {

constexpr int64_t kRows = 3, kSequence = 10;

ModelConfig small(const char* preset, const std::vector<ModelSettings>& more = {}) {
    return model_of(preset, {.layers = 2, .width = 24, .heads = 2, .vocabulary = 50},
                    together({{"model.layers.each.mlp.ratio=2"}, together(more)}));
}

ModelConfig modern_with_all() {
    // Some 60 n-grams share these rows.
    return small("modern",
                 {with_tables({.values = 2, .max_ngram = 3, .ngram_rows = 40}),
                  {kMix, "model.layers.each.attention.window=4",
                   "model.layers.each.attention.rotary.base=100", "model.layers.each.attention.scale=0.2"}});
}

// Parts of both presets crossed. RMSNorm with a gain, and no bias.
ModelConfig crossed() {
    return small(
        "modern",
        {{"model.norms.gain=true", "model.layers.each.mlp.activation=gelu_tanh",
          "model.layers.each.attention.rotary=null", "model.head.tied_to=embed", kMix,
          R"(model.tables={"embed": {"init": {"value": 0.02}}, "position": {"rows": "positions",
                       "init": {"type": "normal", "value": 0.02}}, "ngram_embed": {"rows": "ngrams", "num_rows": 7},
                       "values": {"init": {"type": "normal", "value": 1}}})",
          R"(model.input=[{"type": "table", "table": "embed"}, {"type": "table", "table": "position"},
                       {"type": "table", "table": "ngram_embed"}])",
          R"(model.layers.at={"1": {"attention": {"value_table": "values"}}})"}});
}

ModelConfig crossed_back() {
    // LayerNorm without parameters, but linear layers with biases. Each token attends only to itself.
    return small("gpt2",
                 {{"model.layers.each.mlp.activation=relu_squared", "model.layers.each.attention.rotary={}",
                   R"(model.tables={"embed": {"init": {"value": 1}}, "position": null})",
                   R"(model.input=[{"type": "table", "table": "embed"}, {"type": "norm"}])",
                   "model.norms.gain=false", "model.norms.bias=false", "model.head.tied_to=",
                   "model.head.softcap=5", kMix, "model.layers.each.attention.window=1"}});
}

// Parts that no preset uses: smear, gates, a skip connection, a layer without attention, and a value table in some
// layers. Also XSA, composed heads, keys of the previous token, paired heads and a backout.
ModelConfig in_parts() {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 24, "vocab_size": 50,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "values": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}, {"type": "smear", "columns": 5}, {"type": "norm"}],
            "layers": {
                "count": 6,
                "each": {"enter": [{"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}],
                         "attention": {"heads": 2, "gate": {"columns": 6},
                                       "rotary": {"base": 100, "fraction": 0.5, "endpoint": true}},
                         "mlp": {"ratio": 2}},
                "at": {"0": {"attention": {"value_table": "values", "exclude_own_value": {}}}, "1": null, "2": {"attention": null},
                       "3": {"enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "gate": -1.5}]}], "attention": {"value_table": "values", "window": 4, "key_offset": true}},
                       "4": {"attention": {"value_scale": true, "bias": true, "paired": true}}, "5": {"attention": {"exclude_own_value": {}, "compose_heads": {"keys": 4}}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "after 2", "constant": -1, "scale": 0}]}, {"type": "norm"}],
            "head": {"softcap": 23, "softcap_function": "sigmoid", "logit_shift": 5, "logit_scale": 7.5},
            "loss": {"weights": [1, 0.5, 0.25]}},
        "batch": {"sequence_length": 10, "microbatch_tokens": 30, "tokens_per_step": 30},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", {})
        .model;
}

struct Case {
    const char* name;
    ModelConfig (*model)();
    friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class ModelGradientTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Models, ModelGradientTest,
                         ::testing::Values(Case{"gpt2", [] { return small("gpt2"); }},
                                           Case{"modern", [] { return small("modern"); }},
                                           Case{"modern_with_all", modern_with_all}, Case{"crossed", crossed},
                                           Case{"crossed_back", crossed_back}),
                         [](const auto& info) { return std::string(info.param.name); });

class DirectionalDerivative {
  public:
    DirectionalDerivative(ModelHarness& h, const HostBatch& batch, const Parameter& p)
        : h_(h), batch_(batch), p_(p), start_(h.read(h.model.parameters().master(p))) {}

    // Fourth-order central difference (8(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h. It allows an h large enough to
    // exceed f32 rounding.
    double along(const Values& direction, double h) {
        const double near = at(direction, h) - at(direction, -h);
        const double far = at(direction, 2 * h) - at(direction, -2 * h);
        h_.set(p_, start_);
        return (8 * near - far) / (12 * h);
    }

  private:
    double at(const Values& direction, double h) {
        Values moved = start_;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += h * direction[i];
        h_.set(p_, moved);
        return h_.forward_loss(batch_);
    }

    ModelHarness& h_;
    const HostBatch& batch_;
    const Parameter& p_;
    const Values start_;
};

// Each element moves by about h = 0.002; weights are of size 0.3. Narrow norms have strong curvature, but at this h
// the fourth-order remainder and the kinks of ReLU² stay below 1 %. The sum of about 26 losses of up to 10 nats has a
// rounding error of some 1e-5. The quotient multiplies it by 11.4 / 0.024: 5e-3. A directional derivative is of the
// size ‖g‖, 1 to 50 here. The tolerance is 1 % of it plus 1e-2. A contribution that is missing or counted twice gives
// an error of tens of percent.
void expect_derivative(const ModelConfig& model) {
    ModelHarness h(model, kRows * kSequence, kSequence);
    h.randomize(0.3, 11);
    const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    h.tracker.begin_step();
    h.backward(batch, 1);

    std::mt19937_64 random(17);
    std::normal_distribution<double> normal;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = h.gradient(p);
        DirectionalDerivative derivative(h, batch, p);
        for (int trial = 0; trial < 3; ++trial) {
            Values direction(p.numel());
            double expected = 0;
            for (size_t i = 0; i < direction.size(); ++i) {
                direction[i] = normal(random);
                expected += direction[i] * gradient[i];
            }
            EXPECT_NEAR(derivative.along(direction, 0.002), expected, 0.01 * norm_of(gradient) + 1e-2)
                << p.name << ", gradient of norm " << norm_of(gradient);
        }
    }
}

TEST_P(ModelGradientTest, GradientsMatchFiniteDifferences) {
    expect_derivative(GetParam().model());
}

TEST(PartsGradientTest, GradientsMatchFiniteDifferences) {
    expect_derivative(in_parts());
}

// Gradients of padding rows and of absent tokens must be exactly zero.
TEST_P(ModelGradientTest, AbsentTokensAndPaddingHaveZeroGradient) {
    const ModelConfig model = GetParam().model();
    ModelHarness h(model, kRows * kSequence, kSequence);
    h.randomize(0.3, 11);
    HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    for (int32_t& target : batch.targets) target = std::max(target, 0);  // every position has a valid target
    h.tracker.begin_step();
    h.backward(batch, 1);
    std::vector<bool> occurs(model.padded_vocab_size());
    for (int32_t token : batch.tokens) occurs[token] = true;
    for (const Parameter& p : h.table().all()) {
        if (p.shape[0] != model.padded_vocab_size()) continue;
        const bool head =
            p.name == "head.weight" || model.parts.head.tied();  // reads all rows except padding
        const Values gradient = h.gradient(p);
        for (int64_t row = 0; row < p.shape[0]; ++row) {
            const bool read =
                row < model.vocab_size && (occurs[row] || (head && !p.name.starts_with("value")));
            const Values part(gradient.begin() + row * p.shape[1], gradient.begin() + (row + 1) * p.shape[1]);
            EXPECT_EQ(norm_of(part) > 0, read) << p.name << " row " << row;
        }
    }
}

// A token's loss must not depend on later tokens, other documents or other rows.
TEST_P(ModelGradientTest, LossDependsOnVisibleTokensOnly) {
    const ModelConfig model = GetParam().model();
    ModelHarness h(model, kRows * kSequence, kSequence);
    h.randomize(0.3, 11);
    HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    const int64_t total = kRows * kSequence;
    for (int32_t& target : batch.targets) target = std::max(target, 0);
    h.forward_loss(batch);
    const Values before = h.read(h.model.losses());
    for (int64_t changed = 0; changed < total; ++changed) {
        HostBatch other = batch;
        other.tokens[changed] = (other.tokens[changed] + 1) % static_cast<int32_t>(model.vocab_size);
        h.forward_loss(other);
        const Values after = h.read(h.model.losses());
        for (int64_t t = 0; t < total; ++t) {
            // Two windowed layers see twice as far back, the last token's n-gram a little further. Nothing before the
            // document's start is visible.
            const int64_t window = model.parts.window_of(*model.parts.layers.each.attention, 0);
            const int64_t reach =
                window > 0 ? model.parts.layers.count * (window - 1) + model.parts.ngram_table().num_sizes()
                           : total;
            const bool sees = changed <= t && changed >= batch.first_key[t] && t - changed <= reach;
            EXPECT_EQ(after[t] != before[t], sees) << "token " << changed << " and the loss of " << t;
        }
    }
}

}  // namespace speedrun::testing::model_gradient_test
