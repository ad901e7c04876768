#include "train/engine/batch_sources.h"

#include "data/dataset.h"
#include "data/zipf_tokens.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int kSyntheticBatches = 4;

// See BatchLoaderOptions::max_document_tokens.
int64_t document_tokens(const Config& config) {
    if (config.data.rows == RowKind::stream) return 0;
    return config.data.max_document_tokens > 0 ? config.data.max_document_tokens
                                               : config.batch.sequence_length;
}

}  // namespace

TokenDataset open_dataset(const Config& config, const std::vector<std::string>& patterns, const char* key) {
    if (patterns.empty()) throw_usage("{} is empty: name the token shards", key);
    const std::vector<std::string> files = expand_globs(patterns);
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    if (info.vocab_size > config.model.vocab_size) {
        throw_usage("model.vocab_size {} is below the {} tokens of the dataset {} ({})",
                    config.model.vocab_size, info.vocab_size, info.name, files.front());
    }
    return TokenDataset(files, static_cast<int32_t>(config.model.vocab_size), info.separator);
}

BatchLoaderOptions loader_options(const Config& config) {
    return {.sequence_length = config.batch.sequence_length,
            .rows_per_step = config.batch.tokens_per_step / config.batch.sequence_length,
            .seed = static_cast<uint64_t>(config.seed),
            .shuffle = config.data.shuffle,
            .max_document_tokens = document_tokens(config),
            .document_mask = config.data.document_mask,
            .ngrams = config.model.ngram_table()};
}

ValidationLoaderOptions validation_options(const Config& config) {
    return {.sequence_length = config.batch.sequence_length,
            .val_tokens = config.data.val_tokens,
            .document_mask = config.data.document_mask,
            .ngrams = config.model.ngram_table()};
}

SyntheticBatches::SyntheticBatches(const Config& config) {
    const int64_t count = config.batch.microbatch_tokens, length = config.batch.sequence_length;
    const std::vector<int32_t> tokens =
        zipf_tokens({.count = kSyntheticBatches * count + 1, .vocab_size = config.model.vocab_size});
    for (int64_t begin = 0; begin < kSyntheticBatches * count; begin += count) {
        Batch batch;
        batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + count);
        batch.targets.assign(tokens.begin() + begin + 1, tokens.begin() + begin + count + 1);
        for (int64_t t = 0; t < count; ++t) {
            batch.positions.push_back(static_cast<int32_t>(t % length));
            batch.first_key.push_back(static_cast<int32_t>(t / length * length));
        }
        batch.valid_targets = count;
        batch.step_targets = config.batch.tokens_per_step;
        hash_ngrams(batch, config.model.ngram_table());
        batches_.push_back(std::move(batch));
    }
}

}  // namespace speedrun
