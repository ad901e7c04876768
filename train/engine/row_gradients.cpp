#include "train/engine/row_gradients.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "data/open_file.h"
#include "data/shard.h"
#include "kernels/device/error.h"
#include "train/checkpoint/weights.h"
#include "train/engine/memory_plan.h"
#include "train/engine/prefix_targets.h"
#include "train/model/transformer.h"

namespace speedrun {

namespace {

bool is_shard(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    int32_t magic = 0;
    file.read(reinterpret_cast<char*>(&magic), sizeof magic);
    return file.gcount() == sizeof magic && magic == kShardMagic;
}

std::vector<uint16_t> read_plain(const std::string& path) {
    expect_regular_file(path);
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw_data("{}: cannot be read", path);
    const auto bytes = static_cast<int64_t>(file.tellg());
    if (bytes % 2 != 0) throw_data("{}: {} bytes, but a token has 2 (16 bits, little endian)", path, bytes);
    std::vector<uint16_t> tokens(static_cast<size_t>(bytes / 2));
    file.seekg(0);
    if (!file.read(reinterpret_cast<char*>(tokens.data()), bytes)) throw_data("{}: cannot be read", path);
    return tokens;
}

Batch batch_of(const Config& config, const TokenRow& row, const std::vector<Column>& columns) {
    Batch batch;
    batch.tokens.assign(row.tokens.begin(), row.tokens.end() - 1);
    batch.targets.assign(row.tokens.begin() + 1, row.tokens.end());
    const auto length = static_cast<int64_t>(batch.tokens.size());
    batch.step_targets = length;
    complete(batch, columns,
             {.sequence_length = length,
              .separator =
                  config.data.document_mask ? static_cast<int32_t>(row.separator) : BatchLayout::kNoSeparator,
              .prefixes = read_prefixes(config)});
    return batch;
}

void check_row(const Config& config, const TokenRow& row, int64_t longest_sequence) {
    const auto count = static_cast<int64_t>(row.tokens.size()) - 1;
    if (count < 1) throw_usage("a row of {} tokens: 2 are the least, an input and its target", count + 1);
    if (config.model.parts.has_positions() && count > longest_sequence)
        throw_usage(
            "a row of {} tokens and their targets, but the model has positions for {}: say --length {}",
            count, longest_sequence, longest_sequence);
    for (size_t t = 0; t < row.tokens.size(); ++t)
        if (row.tokens[t] < 0 || row.tokens[t] >= config.model.vocab_size)
            throw_data("token {} of the row is {}, but model.vocab_size is {}", t, row.tokens[t],
                       config.model.vocab_size);
}

class RowPass {
  public:
    RowPass(const Config& config, const ModelShape& shape)
        : config_(config),
          runtime_(runtime_options(config)),
          models_(Transformer::make({shape}, runtime_,
                                    {.documents = config.data.document_mask, .memory = config.memory})),
          model_(*models_.front()),
          gradients_(model_.table(), model_.parameters().layout(), runtime_),
          tracker_(model_.table(), gradients_, model_.description().inactive),
          loss_sum_(runtime_.device(), "loss", MemoryCategory::workspace, size_of(DType::f32)) {
        model_.track(&tracker_);
    }

    void load(const std::string& weights) { load_weights_file(weights, model_.table(), model_.parameters()); }

    RowGradients run(const TokenRow& row) {
        const Batch batch = batch_of(config_, row, model_.description().columns());
        model_.put_batch(batch, config_.model.parts.loss.numbers_at({}));
        RowGradients result;
        result.targets = batch.valid_targets;
        result.gradient_scale = config_.model.parts.loss.gradient_scale(result.targets);
        tracker_.begin_step();
        model_.forward(true);
        model_.loss_and_backward(loss_sum_.tensor(DType::f32, {1}), false, result.gradient_scale);
        const std::vector<float> losses = read(model_.losses());
        for (const float loss : losses) result.loss_sum += static_cast<double>(loss);
        add(result, "loss.mean", {1}, {static_cast<float>(result.loss_mean())});
        add(result, "loss.sum", {1}, {static_cast<float>(result.loss_sum)});
        add(result, "losses", {result.targets}, losses);
        double squares = 0;
        for (const Parameter& p : model_.table().all()) {
            if (p.id == model_.description().inactive) continue;
            const std::vector<float> gradient = read(gradients_.flat(p));
            for (const float g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
            add(result, p.name, p.shape, gradient);
        }
        result.gradient_norm = std::sqrt(squares);
        return result;
    }

  private:
    std::vector<float> read(const Tensor& tensor) {
        std::vector<float> values(static_cast<size_t>(tensor.numel()));
        runtime_.device().copy(values.data(), tensor.data, tensor.bytes(), runtime_.compute());
        runtime_.synchronize();
        return values;
    }
    static void add(RowGradients& result, const std::string& name, const std::vector<int64_t>& shape,
                    const std::vector<float>& values) {
        NamedTensor tensor{name, DType::f32, shape, std::vector<char>(values.size() * sizeof(float))};
        std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
        result.tensors.push_back(std::move(tensor));
    }

    const Config& config_;
    Runtime runtime_;
    const std::vector<std::unique_ptr<Transformer>> models_;
    Transformer& model_;
    GradientStore gradients_;
    PassTracker tracker_;
    Buffer loss_sum_;
};

}  // namespace

std::vector<int32_t> read_token_row(const std::string& path, int64_t length) {
    std::vector<uint16_t> tokens;
    if (is_shard(path)) {
        tokens = Shard(path).read_all();
    } else {
        tokens = read_plain(path);
    }
    const auto count = static_cast<int64_t>(tokens.size());
    if (length > 0 && count < length + 1)
        throw_data("{}: {} tokens, but a row of {} and the target of its last one are {}", path, count,
                   length, length + 1);
    return {tokens.begin(), length > 0 ? tokens.begin() + length + 1 : tokens.end()};
}

RowGradients row_gradients(const Config& config, int64_t stage, const std::string& weights,
                           const TokenRow& row) {
    const Config staged = config.in_stage(stage);
    check_row(staged, row, config.longest_sequence());
    const auto count = static_cast<int64_t>(row.tokens.size()) - 1;
    RowPass pass(staged, {.config = staged.model,
                          .batch = {.tokens = count,
                                    .sequence_length = count,
                                    .longest_sequence = config.longest_sequence()}});
    pass.load(weights);
    return pass.run(row);
}

}  // namespace speedrun
