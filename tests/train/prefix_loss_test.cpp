// Loss with the next token's prefix as an additional target: the whole model against float64 formulas, sources of the
// prefix table, and refused configs.
// Covers: train/engine/prefix_targets.cpp
#include <random>

#include "data/dataset.h"
#include "data/shard.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"
#include "tests/train/model_harness.h"
#include "tests/train/rows.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/model/build_model.h"
#include "train/model/graph/layer_table.h"

namespace speedrun::testing::prefix_loss_test {

constexpr int64_t kRows = 3, kSequence = 10, kWidth = 12, kVocabulary = 30;
// Every third token has no prefix.
int32_t prefix_of(int32_t token) {
    return token % 3 == 0 ? -1 : token / 3;
}

Config config_of(const std::vector<std::string>& settings = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 12, "vocab_size": 30,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {"count": 1, "each": {"attention": null, "mlp": {"ratio": 2}}},
            "output": [{"type": "norm"}],
            "head": {"softcap": 15},
            "loss": {"weights": [1, 0.5], "prefix_weight": 0.25}},
        "batch": {"sequence_length": 10, "microbatch_tokens": 30, "tokens_per_step": 30},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                        "test", settings);
}

using Parameters = std::map<std::string, Values>;

// CE(next) + CE(the one after it)/2 + CE(prefix of next)/4, each only if the target exists.
double loss_of(const Parameters& p, const HostBatch& batch, size_t t) {
    const auto row = p.at("embed.weight").begin() + batch.tokens[t] * kWidth;
    Values x(row, row + kWidth);
    Values hidden = product(p.at("blocks.0.mlp.up.weight"), normed(x));
    for (double& v : hidden) v = v > 0 ? v * v : 0;
    const Values delta = product(p.at("blocks.0.mlp.down.weight"), hidden);
    for (size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
    Values z = product(p.at("head.weight"), normed(x));
    double sum = 0;
    for (double& v : z) v = 15 * std::tanh(v / 15);
    for (size_t v = 0; v < kVocabulary; ++v) sum += std::exp(z[v]);
    const auto entropy = [&](int32_t target) {
        return target < 0 ? 0 : std::log(sum) - z[static_cast<size_t>(target)];
    };
    const int32_t next = batch.targets[t];
    const bool ends = batch.positions[t] + 1 == kSequence;
    return entropy(next) + (ends ? 0 : 0.5 * entropy(batch.targets[t + 1])) +
           0.25 * entropy(next < 0 ? -1 : prefix_of(next));
}

TEST(PrefixLossTest, TheWholeModelIsItsFormulas) {
    const ModelConfig model = config_of().model;
    ModelHarness h(model, kRows * kSequence, kSequence);
    for (int32_t token = 0; token < kVocabulary; ++token) h.prefixes.push_back(prefix_of(token));
    h.randomize(0.4, 5);
    Parameters p;
    for (const Parameter& parameter : h.table().all())
        p[parameter.name] = h.read(h.model.parameters().master(parameter));
    const HostBatch batch = random_batch(model, kRows, kSequence, true, 3);
    h.tracker.begin_step();
    h.backward(batch, 1);
    const Values losses = h.read(h.model.losses());
    const auto total = [&] {
        double sum = 0;
        for (size_t t = 0; t < losses.size(); ++t) sum += loss_of(p, batch, t);
        return sum;
    };
    // A loss accumulates a few dozen roundings of 6e-8.
    for (size_t t = 0; t < losses.size(); ++t) EXPECT_NEAR(losses[t], loss_of(p, batch, t), 1e-5) << t;
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (const Parameter& parameter : h.table().all()) {
        const Values gradient = h.gradient(parameter), start = p.at(parameter.name);
        Values direction(start.size());
        double expected = 0;
        for (size_t i = 0; i < direction.size(); ++i) {
            direction[i] = normal(random);
            expected += direction[i] * gradient[i];
        }
        constexpr double kStep = 1e-5;
        const auto at = [&](double step) {
            for (size_t i = 0; i < start.size(); ++i) p[parameter.name][i] = start[i] + step * direction[i];
            return total();
        };
        const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
        p[parameter.name] = start;
        // f32 roundings of the engine. The float64 difference quotient errs by 1e-8.
        EXPECT_NEAR(expected, slope, 2e-5 * norm_of(gradient) + 1e-5) << parameter.name;
    }
    const ModelGraph written =
        build_model(model, {.tokens = 30, .sequence_length = kSequence}, {.logit_rows = 30});
    EXPECT_THAT(layer_table(written.graph).back().nodes.back(),
                HasSubstr("cross entropy of the next 2 and the prefix"));
}

TEST(PrefixLossTest, StagesChangeTheWeightAndEndIt) {
    const Config config =
        config_of({"schedule.steps=30", "schedule.stages=[10, 20, 30]",
                   "model.loss.prefix_weight=[0.25, [0.25, 0], 0]", "model.loss.weights=[1, [0.5, 0, 0]]"});
    const LossConfig loss = config.model.parts.loss;
    using Numbers = std::vector<float>;
    EXPECT_EQ(loss.in_stage(0).numbers_at({.stage = 0, .share = 0.5}), (Numbers{1, 0.5, 0.25}));
    EXPECT_EQ(loss.in_stage(1).numbers_at({.stage = 1, .share = 0.5}), (Numbers{1, 0.125}));
    EXPECT_TRUE(config.in_stage(2).model.parts.loss.is_plain());
    EXPECT_TRUE(config.in_validation().model.parts.loss.is_plain());
    EXPECT_FALSE(config.in_stage(1).model.parts.loss.is_plain());
    EXPECT_EQ(config.in_stage(1).model.parts.loss.num_targets(), 2);
    EXPECT_FALSE(config_of({"model.loss.prefix_weight=0"}).model.parts.loss.counts_prefixes());
    EXPECT_EQ(config_to_json(parse_config(config_to_json(config), "again", {})), config_to_json(config));
    const auto refused = [](const std::vector<std::string>& settings, const std::string& text) {
        expect_error(ExitCode::usage, {text}, [&] { config_of(settings); });
    };
    refused({"model.loss.weights=[1,1,1,1,1,1,1,1]"},
            "8 weights and prefix_weight, which are 9 targets in all");
    refused({"model.loss.prefix_weight=-1"}, "model.loss.prefix_weight: -1 is outside");
    refused({"model.loss.prefix_weight=[1, 0]"}, "model.loss.prefix_weight has 2 entries");
}

// ---- sources of the prefix table

class PrefixesOfDataTest : public ::testing::Test {
  protected:
    // Writes a dataset of these tokens. Its vocabulary hash is the hash of the tokenizer file next to it.
    void write_dataset(const std::string& tokenizer, int32_t vocab_size,
                       const std::string& vocabulary) const {
        write_shard(dir_.file("train.bin"), tokens_);
        DatasetInfo info{.name = "small",
                         .tokenizer = tokenizer,
                         .vocab_size = vocab_size,
                         .separator = vocab_size - 1,
                         .shards = {{"train.bin", "train", static_cast<int64_t>(tokens_.size()),
                                     sha256_file(dir_.file("train.bin"))}}};
        if (!vocabulary.empty())
            info.vocabulary_sha256 = sha256_file(dir_.write(kVocabularyFile, vocabulary));
        write_dataset_info(dir_.file("dataset.json"), info);
    }
    Config config(std::vector<std::string> settings = {}) const {
        settings.insert(settings.begin(), {"data.train=" + dir_.file("train.bin"), "model.vocab_size=300"});
        return config_of(settings);
    }
    // All bytes, then ab, abc, bc.
    static std::string vocabulary() {
        std::string text;
        constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for (int byte = 0; byte < 256; ++byte)
            text += fmt::format("{}{}== {}\n", kDigits[byte >> 2], kDigits[(byte & 3) << 4], byte);
        return text + "YWI= 256\nYWJj 257\nYmM= 258\n";
    }
    void refused(const Config& c, ExitCode code, const std::string& text) const {
        expect_error(code, {text}, [&] { loader_options(c); });
    }

    const TempDir dir_;
    const std::vector<uint16_t> tokens_ = [] {
        std::vector<uint16_t> tokens;
        for (int i = 0; i < 200; ++i) tokens.push_back(static_cast<uint16_t>(i % 5 == 4 ? 259 : 254 + i % 5));
        return tokens;
    }();
};

TEST_F(PrefixesOfDataTest, AreThoseOfTheDatasetsVocabulary) {
    write_dataset("gpt2", 260, vocabulary());
    for (const bool beside : {true, false}) {
        Config c = config({"data.shuffle=false"});
        if (!beside) {  // the dataset has no vocabulary; data.vocabulary supplies it
            write_dataset("gpt2", 260, "");
            c.data.vocabulary = dir_.write("other", vocabulary());
        }
        const TokenDataset data = open_dataset(c, c.data.train, "data.train");
        Batch batch;
        BatchLoader(data, loader_options(c)).fill(0, {0, 3}, batch);
        const std::vector<int32_t>& targets = batch.columns.at("targets");
        const size_t count = batch.targets.size();
        ASSERT_EQ(targets.size(), 3 * count);
        std::map<int32_t, int32_t> expected{{254, -1}, {255, -1}, {256, 'a'}, {257, 256}, {259, -1}};
        for (size_t t = 0; t < count; ++t)
            EXPECT_EQ(targets[2 * count + t], expected.at(batch.targets[t])) << batch.targets[t];
    }
}

TEST_F(PrefixesOfDataTest, WhatHasNoneIsRefused) {
    write_dataset("bytes", 257, "");
    refused(config(), ExitCode::usage,
            "model.loss.prefix_weight: tokens of the dataset small (" + dir_.file("train.bin") +
                ") are single bytes, of which none has a prefix: leave it out");
    EXPECT_EQ(loader_options(config({"model.loss.prefix_weight=0"})).prefixes, nullptr);
    write_dataset("gpt2", 260, "");
    refused(config(), ExitCode::usage, "came without its tokenizer's vocabulary: give data.vocabulary");
    refused(config({"data.vocabulary=" + dir_.file("missing")}), ExitCode::data, "missing: cannot be read");
    write_dataset("gpt2", 261, vocabulary());
    refused(config(), ExitCode::data, "260 tokens, the dataset small");
    refused(config({"data.train=[]"}), ExitCode::usage, "data.train names none");
}

}  // namespace speedrun::testing::prefix_loss_test
