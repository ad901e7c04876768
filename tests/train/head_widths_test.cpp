// Heads of their own sizes equal heads of full size whose other rows and columns are zero: losses, gradients, and steps of AdamW,
// which leave the zeros as they are.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/train/model_harness.h"
#include "train/config/config_json.h"

namespace speedrun::testing::head_widths_test {

constexpr int64_t kHeads = 4, kWidth = 64, kFull = kWidth / kHeads, kRows = 2, kSequence = 16, kSteps = 6;
constexpr double kScale = 0.3;

struct HeadSizes {
    int64_t qk, v;
};
constexpr HeadSizes kNarrow[] = {{8, kFull}, {8, 8}, {kFull, 8}};  // index: layer

// Eight of sixteen dimensions of q and k rotate, which are all of a narrow head. QK-norm multiplies a full head by √2 more, and q·k
// by 2, as half of its dimensions are zero.
ModelConfig model_with(bool narrow, bool qk_norm) {
    std::vector<std::string> settings;
    for (size_t i = 0; i < std::size(kNarrow); ++i) {
        const auto [qk, v] = kNarrow[i];
        const std::string attention = fmt::format("model.layers.at.{}.attention.", i);
        const bool shorter = qk < kFull;
        settings.push_back(attention +
                           fmt::format("scale={}", qk_norm && shorter && !narrow ? kScale / 2 : kScale));
        if (!narrow) continue;
        settings.push_back(attention + fmt::format("qk_head_dim={}", qk));
        settings.push_back(attention + fmt::format("v_head_dim={}", v));
        if (shorter) settings.push_back(attention + "rotary.fraction=1");
    }
    settings.push_back(fmt::format("model.layers.each.attention.qk_norm={}", qk_norm));
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 64, "vocab_size": 64, "norms": {"epsilon": 1e-20},
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "gated": {"init": {"type": "normal", "value": 1}},
                       "mixed": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {
                "count": 3,
                "each": {"attention": {"heads": 4, "rotary": {"base": 100, "fraction": 0.5}, "exclude_own_value": {}},
                         "mlp": null},
                "at": {"0": {"attention": {"paired": true, "window": "7"}},
                       "1": {"attention": {"value_table": "gated", "value_gate": {}, "value_scale": true}},
                       "2": {"attention": {"value_table": "mixed", "key_offset": true, "gate": {}}}}},
            "output": [{"type": "norm"}]},
        "batch": {"sequence_length": 16, "microbatch_tokens": 32, "tokens_per_step": 32},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings)
        .model;
}

// Returns the indices of narrow heads in full ones, from `first` on. halves: of pairs (i, i + half).
std::vector<int64_t> places_of(int64_t narrow, bool halves, int64_t first = 0) {
    std::vector<int64_t> places;
    for (int64_t head = 0; head < kHeads; ++head)
        for (int64_t d = 0; d < narrow; ++d)
            places.push_back(first + head * kFull +
                             (halves && d >= narrow / 2 ? d - narrow / 2 + kFull / 2 : d));
    return places;
}

// Rows and columns of a narrow parameter in the full one; empty: all.
struct Places {
    std::vector<int64_t> rows, columns;
};
Places places_of(const std::string& name) {
    const auto layer_of = [&] {
        return kNarrow[static_cast<size_t>(name[std::string("blocks.").size()] - '0')];
    };
    if (name.ends_with("attn.out.weight")) return {.rows = {}, .columns = places_of(layer_of().v, false)};
    if (name == "gated.weight") return {.rows = {}, .columns = places_of(kNarrow[1].v, false)};
    if (name == "mixed.weight") return {.rows = {}, .columns = places_of(kNarrow[2].v, false)};
    if (!name.ends_with("attn.qkv.weight")) return {};
    Places places;
    for (int64_t stack = 0; stack < 3; ++stack) {
        const bool of_v = stack == 2;
        for (const int64_t row :
             places_of(of_v ? layer_of().v : layer_of().qk, !of_v, stack * kHeads * kFull))
            places.rows.push_back(row);
    }
    return places;
}

Values expanded(const Values& narrow, const Parameter& full) {
    const Places places = places_of(full.name);
    const int64_t columns = full.shape.size() == 2 ? full.shape[1] : 1;
    const int64_t narrow_columns =
        places.columns.empty() ? columns : static_cast<int64_t>(places.columns.size());
    Values all(static_cast<size_t>(full.numel()), 0.0);
    for (size_t i = 0; i < narrow.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / narrow_columns,
                   column = static_cast<int64_t>(i) % narrow_columns;
        const int64_t at_row = places.rows.empty() ? row : places.rows[static_cast<size_t>(row)],
                      at_column =
                          places.columns.empty() ? column : places.columns[static_cast<size_t>(column)];
        all[static_cast<size_t>(at_row * columns + at_column)] = narrow[i];
    }
    return all;
}

class Training {
  public:
    explicit Training(const ModelConfig& model) : h(model, kRows * kSequence, kSequence) {}

    // Returns the loss before the step; Loshchilov & Hutter 2019, algorithm 2, in double.
    double step(const HostBatch& batch) {
        constexpr double kRate = 3e-3, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-5;
        ++number_;
        h.tracker.begin_step();
        const double loss = h.backward(batch, 1.0f / static_cast<float>(kRows * kSequence));
        for (const Parameter& p : h.table().all()) {
            const Values& g = gradients[p.name] = h.gradient(p);
            auto& [m, v] = moments_[p.name];
            m.resize(g.size());
            v.resize(g.size());
            Values values = value(p);
            for (size_t i = 0; i < g.size(); ++i) {
                m[i] = kBeta1 * m[i] + (1 - kBeta1) * g[i];
                v[i] = kBeta2 * v[i] + (1 - kBeta2) * g[i] * g[i];
                const double mean = m[i] / (1 - std::pow(kBeta1, number_)),
                             square = v[i] / (1 - std::pow(kBeta2, number_));
                values[i] -= kRate * (mean / (std::sqrt(square) + kEpsilon) + kDecay * values[i]);
            }
            h.set(p, values);
        }
        return loss;
    }
    Values value(const Parameter& p) { return h.read(h.model.parameters().master(p)); }

    ModelHarness h;
    std::map<std::string, Values> gradients;

  private:
    std::map<std::string, std::pair<Values, Values>> moments_;
    int number_ = 0;
};

class HeadWidthsTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(QkNorm, HeadWidthsTest, ::testing::Bool());

// The two programs sum equal numbers in other orders: a few roundings of 6e-8, relative to the norm of a gradient.
TEST_P(HeadWidthsTest, NarrowHeadsEqualFullHeadsWithZeros) {
    const ModelConfig narrow_model = model_with(true, GetParam()), full_model = model_with(false, GetParam());
    Training narrow(narrow_model), full(full_model);
    narrow.h.randomize(0.3, 11);
    int64_t dead = 0;
    for (const Parameter& p : full.h.table().all()) {
        const Parameter& other = narrow.h.table().find(p.name);
        dead += p.numel() - other.numel();
        full.h.set(p, expanded(narrow.value(other), p));
    }
    const int64_t rows = kHeads * (2 * 8 + 2 * 8 + 8 + 8), columns = kHeads * (8 + 8);
    EXPECT_EQ(dead, (rows + columns) * kWidth + columns * narrow_model.padded_vocab_size());
    double worst = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
        const HostBatch batch =
            random_batch(narrow_model, kRows, kSequence, true, static_cast<uint64_t>(step + 1));
        const double loss = narrow.step(batch), expected = full.step(batch);
        EXPECT_NEAR(loss, expected, 1e-6 * expected) << "step " << step;
        for (const Parameter& p : full.h.table().all()) {
            const Values gradient = expanded(narrow.gradients.at(p.name), p);
            const double deviation =
                norm_of(difference_of(gradient, full.gradients.at(p.name))) / norm_of(gradient);
            // The terms of a number's gradient cancel: 2.6e-6 measured.
            EXPECT_LT(deviation, p.is_matrix() ? 1e-6 : 1e-5) << p.name << ", step " << step;
            worst = std::max(worst, deviation);
            const Values all = full.value(p),
                         same = expanded(Values(narrow.gradients.at(p.name).size(), 1.0), p);
            for (size_t i = 0; i < all.size(); ++i) {
                if (same[i] != 0) continue;
                ASSERT_EQ(all[i], 0) << p.name << " " << i;
            }
        }
    }
    RecordProperty("largest_deviation", std::to_string(worst));
}

}  // namespace speedrun::testing::head_widths_test
