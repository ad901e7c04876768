// Loss and raw gradients of one row equal training's. Weights and rows that do not fit give clear errors.
// build: release
#include "train/engine/row_gradients.h"
#include "tests/errors.h"

#include <cstring>

#include "data/shard.h"
#include "tests/temp_dir.h"
#include "tests/train/model_harness.h"
#include "train/config/config_json.h"

namespace speedrun::testing::row_gradients_test {

constexpr int32_t kSeparator = 31;
const std::vector<int32_t> kRow{31, 4, 5, 6, 31, 7, 8, 9, 10, 31, 11, 12};

class RowGradientsTest : public ::testing::Test {
  protected:
    Config config(const std::vector<std::string>& more = {}) const {
        std::vector<std::string> settings{"device=cpu", "precision=f32", "threads=1"};
        settings.insert(settings.end(), more.begin(), more.end());
        return parse_config(R"({
            "model": {"preset": "none", "model_dim": 16, "vocab_size": 32,
                "tables": {"embed": {}, "grams": {"rows": "ngrams", "max_ngram": 2, "num_rows": 37}},
                "windows": {"long": [2, 5]},
                "input": [{"type": "table", "table": "embed"}, {"type": "table", "table": "grams"}, {"type": "norm"}],
                "layers": {"count": 2, "each": {"enter": [{"terms": [{"of": "stream", "scale": 1}, {"of": "first", "scale": 0}]}],
                                                "attention": {"heads": 2, "window": "long"}, "mlp": {}}},
                "output": [{"type": "norm"}], "loss": {"weights": [1, [0.5, 0.25]]}},
            "batch": {"sequence_length": 16, "microbatch_tokens": 32, "tokens_per_step": 32},
            "optimizers": {"groups": [{"params": ["*"]}]},
            "schedule": {"steps": 4, "stages": [2, 4]}})",
                            "test", settings);
    }

    // Expected result of row_gradients, and the weights used.
    struct Expected {
        double loss = 0;
        std::vector<std::pair<std::string, Values>> gradients = {};
        std::vector<NamedTensor> weights = {};
    };
    static Expected expected(const Config& c, float gradient_scale) {
        const auto count = static_cast<int64_t>(kRow.size()) - 1;
        ModelHarness h(c.model, count, count);
        h.randomize(0.3, 11);
        HostBatch batch;
        int32_t first = 0;
        for (int32_t t = 0; t < count; ++t) {
            if (kRow[static_cast<size_t>(t)] == kSeparator) first = t;
            batch.tokens.push_back(kRow[static_cast<size_t>(t)]);
            batch.targets.push_back(kRow[static_cast<size_t>(t) + 1]);
            batch.positions.push_back(t);
            batch.first_key.push_back(first);
        }
        h.tracker.begin_step();
        Expected e{.loss = h.backward(batch, gradient_scale)};
        for (const Parameter& p : h.table().all()) {
            e.gradients.emplace_back(p.name, h.gradient(p));
            const Values values = h.read(h.model.parameters().master(p));
            const std::vector<float> f32(values.begin(), values.end());
            NamedTensor tensor{p.name, DType::f32, p.shape, std::vector<char>(f32.size() * sizeof(float))};
            std::memcpy(tensor.bytes.data(), f32.data(), tensor.bytes.size());
            e.weights.push_back(std::move(tensor));
        }
        return e;
    }
    std::string weights_file(const std::vector<NamedTensor>& tensors) const {
        std::string path = dir_.path() + "/weights.safetensors";
        write_safetensors(path, tensors);
        return path;
    }
    static const NamedTensor& tensor_of(const RowGradients& result, const std::string& name) {
        for (const NamedTensor& tensor : result.tensors)
            if (tensor.name == name) return tensor;
        throw std::runtime_error("no tensor " + name);
    }
    static Values values_of(const NamedTensor& tensor) {
        std::vector<float> values(tensor.bytes.size() / sizeof(float));
        std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
        return {values.begin(), values.end()};
    }
    std::string file(const char* name, const std::vector<uint8_t>& bytes) const {
        std::string path = dir_.path() + "/" + name;
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return path;
    }

    const TempDir dir_;
};

TEST_F(RowGradientsTest, AreThoseOfTheModelThatTrains) {
    for (const int64_t stage : {0, 1}) {
        const Config c = config();
        const float scale = 1.0F / 11;
        const Expected e = expected(c.in_stage(stage), scale);
        const RowGradients result = row_gradients(c, stage, weights_file(e.weights), {kRow, kSeparator});
        EXPECT_EQ(result.targets, 11);
        EXPECT_EQ(result.gradient_scale, scale);
        EXPECT_NEAR(result.loss_sum, e.loss, 1e-12 * e.loss);
        EXPECT_EQ(values_of(tensor_of(result, "loss.sum")), Values{static_cast<float>(e.loss)});
        EXPECT_EQ(values_of(tensor_of(result, "loss.mean")), Values{static_cast<float>(e.loss / 11)});
        EXPECT_EQ(tensor_of(result, "losses").shape, (std::vector<int64_t>{11}));
        double squares = 0;
        for (const auto& [name, gradient] : e.gradients) {
            EXPECT_EQ(values_of(tensor_of(result, name)), gradient) << name;
            squares += norm_of(gradient) * norm_of(gradient);
        }
        EXPECT_NEAR(result.gradient_norm, std::sqrt(squares), 1e-9);
        EXPECT_EQ(result.tensors.size(), e.gradients.size() + 3);
    }
}

TEST_F(RowGradientsTest, DivisorAndDocumentsCount) {
    const Config c = config({"model.loss.gradient_divisor=1"});
    const Expected e = expected(c.in_stage(1), 1);
    const std::string weights = weights_file(e.weights);
    const RowGradients sum = row_gradients(c, 1, weights, {kRow, kSeparator});
    EXPECT_EQ(values_of(tensor_of(sum, "head.weight")), e.gradients.back().second);
    EXPECT_NE(row_gradients(c, 1, weights, {kRow, -1}).loss_sum, sum.loss_sum) << "one document";
    const Config whole = config({"data.document_mask=false"});
    EXPECT_EQ(row_gradients(whole, 1, weights, {kRow, kSeparator}).loss_sum,
              row_gradients(c, 1, weights, {kRow, -1}).loss_sum);
}

TEST_F(RowGradientsTest, WeightsThatDoNotFitAreNamedTogether) {
    const Config c = config();
    std::vector<NamedTensor> tensors = expected(c.in_stage(1), 1).weights;
    tensors[0].name = "embedding.weight";
    tensors[1].shape = {tensors[1].shape[1], tensors[1].shape[0]};
    const std::string error = error_of(ExitCode::data, [&] {
        row_gradients(c, 1, weights_file(tensors), {kRow, kSeparator});
    });
    for (const char* text : {"unknown tensor embedding.weight", "missing tensor embed.weight",
                             "grams.weight is f32 [16,37], expected f32 [37,16]"})
        EXPECT_THAT(error, HasSubstr(text));
}

TEST_F(RowGradientsTest, RowsThatDoNotFitAreRefused) {
    const Config c = config();
    const std::string weights = weights_file(expected(c.in_stage(1), 1).weights);
    EXPECT_THAT(error_of(ExitCode::usage,
                         [&] {
                             row_gradients(c, 1, weights, {{1}, 31});
                         }),
                HasSubstr("2 are the least"));
    EXPECT_THAT(error_of(ExitCode::data,
                         [&] {
                             row_gradients(c, 1, weights, {{1, 32}, 31});
                         }),
                HasSubstr("token 1 of the row is 32, but model.vocab_size is 32"));
    Config gpt2 = parse_config(
        R"({"model": {"preset": "gpt2", "layers": {"count": 1}, "model_dim": 16, "vocab_size": 32},
                                   "batch": {"sequence_length": 8, "microbatch_tokens": 8, "tokens_per_step": 8},
                                   "optimizers": {"groups": [{"params": ["*"]}]}})",
        "test", {"device=cpu"});
    EXPECT_THAT(error_of(ExitCode::usage,
                         [&] {
                             row_gradients(gpt2, 0, weights, {kRow, 31});
                         }),
                HasSubstr("a row of 11 tokens and their targets, but the model has positions for 8"));
}

TEST_F(RowGradientsTest, FilesAreBareTokensOrShards) {
    const std::string bare = file("bare.bin", {1, 0, 2, 0, 0, 1});
    EXPECT_EQ(read_token_row(bare, 0), (std::vector<int32_t>{1, 2, 256}));
    EXPECT_EQ(read_token_row(bare, 1), (std::vector<int32_t>{1, 2}));
    const std::vector<uint16_t> tokens{3, 65535, 5};
    write_shard(dir_.path() + "/shard.bin", tokens);
    EXPECT_EQ(read_token_row(dir_.path() + "/shard.bin", 0), (std::vector<int32_t>{3, 65535, 5}));
    EXPECT_THAT(error_of(ExitCode::data, [&] { read_token_row(bare, 3); }),
                HasSubstr("3 tokens, but a row of 3"));
    EXPECT_THAT(error_of(ExitCode::data,
                         [&] {
                             read_token_row(file("odd.bin", {1, 0, 2}), 0);
                         }),
                HasSubstr("3 bytes"));
    EXPECT_THAT(error_of(ExitCode::data, [&] { read_token_row(dir_.path() + "/none.bin", 0); }),
                HasSubstr("cannot be read"));
}

}  // namespace speedrun::testing::row_gradients_test
