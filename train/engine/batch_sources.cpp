#include "train/engine/batch_sources.h"

#include "data/dataset.h"
#include "data/further_targets.h"
#include "data/shard_patterns.h"
#include "data/zipf_tokens.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int kSyntheticBatches = 4;

// Of a config of one stage: see LoaderStage::max_document_tokens.
int64_t document_tokens(const Config& config) {
    if (config.data.rows == RowKind::stream) return 0;
    const int64_t most = config.data.max_document_tokens;
    return most > 0 ? most : int64_t{config.batch.sequence_length} + 1;  // inputs and the last one's target
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
    return TokenDataset(files, static_cast<int32_t>(config.model.vocab_size), info.separator,
                        info.separators);
}

BatchLoaderOptions loader_options(const Config& config, const ContextPart& part) {
    std::vector<LoaderStage> stages;
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        stages.push_back({.sequence_length = stage.batch.sequence_length,
                          .rows_per_step = stage.batch.tokens_per_step / stage.batch.sequence_length,
                          .max_document_tokens = document_tokens(stage),
                          .num_targets = stage.model.loss().num_tokens(),
                          .prefixes = stage.model.loss().counts_prefixes(),
                          .num_steps = config.schedule.end_step(i) - config.schedule.first_step(i)});
    }
    return {.stages = std::move(stages),
            .seed = static_cast<uint64_t>(config.seed),
            .shuffle = config.data.shuffle,
            .document_mask = config.data.document_mask,
            .ngrams = config.model.ngram_table(),
            .part = part,
            .prefixes = read_prefixes(config)};
}

std::vector<int64_t> rows_per_microbatch(const Config& config) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        rows.push_back(stage.batch.microbatch_tokens / stage.batch.sequence_length);
    }
    return rows;
}

ValidationLoaderOptions validation_options(const Config& config, const ContextPart& part) {
    return {.sequence_length = config.in_validation().batch.sequence_length,
            .val_tokens = config.data.val_tokens,
            .document_mask = config.data.document_mask,
            .ngrams = config.model.ngram_table(),
            .part = part};
}

SyntheticBatches::SyntheticBatches(const Config& config, const ContextPart& part) {
    const int64_t count = config.batch.microbatch_tokens, length = config.batch.sequence_length;
    const std::vector<int32_t> tokens =
        zipf_tokens({.count = kSyntheticBatches * count + 1, .vocab_size = config.model.vocab_size});
    const PrefixTable prefixes = made_up_prefixes(config);
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
        add_further_targets(batch, config.model.loss().num_tokens(), prefixes_in(prefixes));
        take_part(batch, length, part);
        batches_.push_back(std::move(batch));
    }
}

}  // namespace speedrun
