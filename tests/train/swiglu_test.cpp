// SwiGLU against its formula in float64, on several ranks, with checkpoints of activations, and its refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "tests/errors.h"
#include "tests/runs/rank_run_fixture.h"
#include "tests/train/twin_model.h"
#include "train/config/cannot_learn.h"
#include "train/config/config_json.h"
#include "train/config/presets.h"
#include "train/hf/hf_config.h"
#include "train/model/build_model.h"

namespace speedrun::testing::swiglu_test {

constexpr int64_t kRows = 2, kSequence = 9, kWidth = 24, kLayers = 2;
const std::string kSwiglu = "model.layers.each.mlp.swiglu=true";

Config config_of(const Settings& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 24, "vocab_size": 40,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {"count": 2, "each": {"attention": null, "mlp": {"ratio": 2, "swiglu": true}}},
            "output": [{"type": "norm"}],
            "head": {"softcap": 0}},
        "batch": {"sequence_length": 9, "microbatch_tokens": 18, "tokens_per_step": 18},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

ModelConfig preset_of(const std::string& preset, Settings settings = {}) {
    settings.insert(settings.begin(), {"model.preset=" + preset, R"(optimizers.groups=[{"params": ["*"]}])"});
    return parse_config("{}", "test", settings).model;
}

// The model in float64, one token at a time.
struct Twin : TwinModel {
    using TwinModel::TwinModel;
    Values losses() const override {
        Values losses;
        for (size_t t = 0; t < batch.tokens.size(); ++t) {
            Values x = row("embed", batch.tokens[t], kWidth);
            for (int layer = 0; layer < kLayers; ++layer) {
                const std::string mlp = "blocks." + std::to_string(layer) + ".mlp.";
                const Values n = normed(x), gate = linear(mlp + "gate", n);
                Values hidden = linear(mlp + "up", n);
                for (size_t i = 0; i < hidden.size(); ++i) hidden[i] *= gate[i] / (1 + std::exp(-gate[i]));
                add(x, 1, 1, linear(mlp + "down", hidden));
            }
            losses.push_back(cross_entropy_of(x, t));
        }
        return losses;
    }
};

TEST(SwigluTest, TheModelIsItsFormula) {
    for (const char* const bias : {"true", "false"}) {
        SCOPED_TRACE(bias);
        const ModelConfig model = config_of({std::string("model.layers.each.mlp.bias=") + bias}).model;
        const auto start = [](const Parameter& p, std::mt19937_64& random) {
            return normal_values(p, 0, 0.3, random);
        };
        expect_twin({model, kRows, kSequence, start, [](const Parameter&) { return 1e-5; }},
                    [&](const HostBatch& batch) { return std::make_unique<Twin>(batch, model); });
    }
}

TEST(SwigluTest, IsOffByDefault) {
    const auto matrices = [](const Settings& settings) {
        std::map<std::string, int64_t> sizes;
        const ParameterTable table = parameters_of(config_of(settings).model, kSequence);
        for (const Parameter& p : table.all())
            if (p.name.rfind("blocks.0.", 0) == 0) sizes[p.name] = p.numel();
        return sizes;
    };
    constexpr int64_t kSize = 2 * kWidth * kWidth;
    const std::map<std::string, int64_t> off = {{"blocks.0.mlp.up.weight", kSize},
                                                {"blocks.0.mlp.down.weight", kSize}};
    std::map<std::string, int64_t> on = off;
    on["blocks.0.mlp.gate.weight"] = kSize;
    EXPECT_EQ(matrices({}), on);
    EXPECT_EQ(matrices({"model.layers.each.mlp={\"ratio\": 2, \"swiglu\": false}"}), off);
    for (const auto& [preset, text] : presets())
        EXPECT_FALSE(preset_of(preset).parts.layers.each.mlp->swiglu) << preset;
}

TEST(SwigluTest, HasNoSlopeWhereBothMatricesAreZero) {
    const std::string zero = R"(model.layers.each.mlp.init={"type": "constant", "value": 0})",
                      down = "model.layers.each.mlp.down_init.value=0.1";
    const std::vector<std::string> found = parts_that_cannot_learn(config_of({zero, down}).model);
    ASSERT_EQ(found.size(), size_t{kLayers});
    EXPECT_NE(found[0].find("swiglu has no slope at zero"), std::string::npos) << found[0];
    EXPECT_EQ(parts_that_cannot_learn(config_of({down}).model), std::vector<std::string>());
}

TEST(SwigluTest, IsNoGpt2) {
    EXPECT_EQ(gpt2_problems(preset_of("gpt2")), "");
    const std::string problems = gpt2_problems(preset_of("gpt2", {kSwiglu}));
    EXPECT_NE(problems.find("swiglu"), std::string::npos) << problems;
}

class SwigluRunTest : public RankRunFixture {
  protected:
    // Trains six steps and returns the losses.
    std::vector<double> train(const std::string& name, int ranks, Settings settings) {
        settings.insert(
            settings.begin(),
            {kSwiglu,
             R"(model.layers.each.mlp.down_init={"type": "uniform", "value": 0.5, "by_fan_in": true})",
             "schedule.steps=6", "eval.every=3", "threads=1", "batch.microbatch_tokens=256"});
        EXPECT_EQ(RankRunFixture::train(config(settings), ranks, name), "");
        return losses(name);
    }
    std::vector<double> norms(const std::string& name) const {
        std::vector<double> values;
        for (const Json& line : metrics(name))
            if (line["event"] == "step") values.push_back(line["grad_norm"]);
        return values;
    }
};

// The tensor axis cuts the hidden layer.
TEST_F(SwigluRunTest, RanksTrainAsOneRankDoes) {
    const std::vector<double> one = train("one", 1, {});
    EXPECT_LT(one.back(), one.front());
    const std::map<std::string, Settings> meshes = {
        {"ddp", {"parallel.strategy=ddp"}},
        {"zero3", {"parallel.strategy=zero3"}},
        {"tensor", {"parallel.tensor=2"}},
        {"sequence", {"parallel.tensor=2", "parallel.sequence=true"}}};
    for (const auto& [mesh, settings] : meshes) {
        expect_near(train(mesh, 2, settings), one, kRanksTolerance, mesh);
        expect_near(norms(mesh), norms("one"), 10 * kRanksTolerance, mesh + ", norms");
    }
    EXPECT_EQ(train("recomputed", 1, {"memory.activation_checkpointing=full"}), one);
    EXPECT_EQ(norms("recomputed"), norms("one"));
}

// Both first matrices and the second one multiply in 8 bits.
TEST_F(SwigluRunTest, TrainsInFp8) {
    const std::vector<double> plain = train("plain", 1, {}),
                              fp8 = train(
                                  "fp8", 1,
                                  {"model.layers.each.mlp.up_fp8={}", "model.layers.each.mlp.down_fp8={}"});
    EXPECT_NE(fp8, plain);
    expect_near(fp8, plain, 0.03, "fp8");
}

}  // namespace speedrun::testing::swiglu_test
