// Loss with the next token's prefix as an additional target: the whole model against float64 formulas, sources of the
// prefix table, and refused configs.
// Covers: train/engine/prefix_targets.cpp
#include <random>

#include "data/dataset.h"
#include "data/shard.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"
#include "tests/train/twin_model.h"
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

// CE(next) + CE(the one after it)/2 + CE(prefix of next)/4, each only if the target exists.
struct Twin : TwinModel {
    using TwinModel::TwinModel;
    Values losses() const override {
        Values losses;
        for (size_t t = 0; t < batch.tokens.size(); ++t) {
            Values x = row("embed", batch.tokens[t], kWidth);
            add(x, 1, 1, mlp("blocks.0.", x));
            const Values z = logits(x);
            const int32_t next = batch.targets[t];
            const bool ends = batch.positions[t] + 1 == kSequence;
            losses.push_back(cross_entropy(z, next) +
                             (ends ? 0 : 0.5 * cross_entropy(z, batch.targets[t + 1])) +
                             0.25 * cross_entropy(z, next < 0 ? -1 : prefix_of(next)));
        }
        return losses;
    }
};

TEST(PrefixLossTest, ModelMatchesFormulas) {
    const ModelConfig model = config_of().model;
    std::vector<int32_t> prefixes;
    for (int32_t token = 0; token < kVocabulary; ++token) prefixes.push_back(prefix_of(token));
    const auto start = [](const Parameter& p, std::mt19937_64& random) {
        return normal_values(p, 0, 0.4, random);
    };
    expect_twin({model, kRows, kSequence, start, [](const Parameter&) { return 1e-5; }, prefixes},
                [&](const HostBatch& batch) { return std::make_unique<Twin>(batch, model); });
    const ModelGraph written =
        build_model(model, {.tokens = 30, .sequence_length = kSequence}, {.logit_rows = 30});
    EXPECT_THAT(layer_table(written.graph).back().nodes.back(),
                HasSubstr("cross entropy of the next 2 and the prefix"));
}

TEST(PrefixLossTest, StagesChangeWeight) {
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

class PrefixSourceTest : public ::testing::Test {
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

TEST_F(PrefixSourceTest, UsesVocabularyOfDataset) {
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

TEST_F(PrefixSourceTest, RejectsDataWithoutPrefixes) {
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
