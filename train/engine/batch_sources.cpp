#include "train/engine/batch_sources.h"

#include "data/dataset.h"
#include "data/shard_patterns.h"
#include "data/zipf_tokens.h"
#include "kernels/device/error.h"
#include "train/engine/run_stages.h"

namespace speedrun {

namespace {

constexpr int kSyntheticBatches = 4;

}  // namespace

int64_t document_tokens(const Config& config) {
    if (config.data.rows == RowKind::stream) return 0;
    const int64_t most = config.data.max_document_tokens;
    return most > 0 ? most : int64_t{config.batch.sequence_length} + 1;  // inputs and the last target
}

TokenDataset open_dataset(const Config& config, const std::vector<std::string>& patterns, const char* key) {
    if (patterns.empty()) throw_usage("{} is empty: list the token shards", key);
    const std::vector<std::string> files = expand_globs(patterns);
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    if (info.vocab_size > config.model.vocab_size) {
        throw_usage("model.vocab_size {} is below the {} tokens of the dataset {} ({})",
                    config.model.vocab_size, info.vocab_size, info.name, files.front());
    }
    return TokenDataset(files, static_cast<int32_t>(config.model.vocab_size), info.separator,
                        info.separators);
}

std::vector<SourcePatterns> train_sources(const Config& config) {
    std::vector<SourcePatterns> sources;
    for (const DataSource& source : config.data.sources)
        sources.push_back({.key = fmt::format("data.train[{}].files", sources.size()),
                           .patterns = source.files,
                           .weight = source.weight});
    if (sources.empty()) sources.push_back({.key = "data.train", .patterns = config.data.train});
    return sources;
}

std::vector<std::vector<std::string>> train_files(const Config& config) {
    std::vector<std::vector<std::string>> files;
    for (const SourcePatterns& source : train_sources(config)) {
        if (source.patterns.empty()) throw_usage("{} is empty: name the token shards", source.key);
        files.push_back(expand_globs(source.patterns));
    }
    return files;
}

TrainingData::TrainingData(const Config& config) {
    for (const SourcePatterns& source : train_sources(config)) {
        datasets_.push_back(open_dataset(config, source.patterns, source.key.c_str()));
        weights_.push_back(source.weight);
    }
}

std::vector<WeightedDataset> TrainingData::sources() const {
    std::vector<WeightedDataset> sources;
    for (size_t i = 0; i < datasets_.size(); ++i)
        sources.push_back({.dataset = &datasets_[i], .weight = weights_[i]});
    return sources;
}

BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks) {
    return loader_options(config, ranks, read_prefixes(config));
}

BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks, PrefixTable prefixes) {
    const RunStages run = run_stages(config, ranks);
    std::vector<LoaderStage> stages;
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        stages.push_back({.sequence_length = stage.batch.sequence_length,
                          .rows_per_step = stage.batch.tokens_per_step / stage.batch.sequence_length,
                          .max_document_tokens = document_tokens(stage),
                          .columns = columns_of(run.shapes[run.stages[static_cast<size_t>(i)].model]),
                          .num_steps = config.schedule.end_step(i) - config.schedule.first_step(i)});
    }
    return {.stages = std::move(stages),
            .seed = static_cast<uint64_t>(config.seed),
            .shuffle = config.data.shuffle,
            .document_mask = config.data.document_mask,
            .part = ranks.part(),
            .prefixes = std::move(prefixes)};
}

std::vector<int64_t> rows_per_microbatch(const Config& config) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        rows.push_back(stage.batch.microbatch_tokens / stage.batch.sequence_length);
    }
    return rows;
}

ValidationLoaderOptions validation_options(const Config& config, const Ranks& ranks) {
    const RunStages run = run_stages(config, ranks);
    return {.sequence_length = config.in_validation().batch.sequence_length,
            .val_tokens = config.data.val_tokens,
            .document_mask = config.data.document_mask,
            .columns = columns_of(run.shapes[run.validation.model]),
            .part = ranks.part()};
}

SyntheticBatches::SyntheticBatches(const Config& config, const Ranks& ranks) {
    const int64_t count = config.batch.microbatch_tokens;
    const std::vector<int32_t> tokens =
        zipf_tokens({.count = kSyntheticBatches * count + 1, .vocab_size = config.model.vocab_size});
    const std::vector<Column> columns = columns_of(run_stages(config, ranks).shapes.front());
    const BatchLayout layout{.sequence_length = config.batch.sequence_length,
                             .part = ranks.part(),
                             .prefixes = made_up_prefixes(config.model)};
    for (int64_t begin = 0; begin < kSyntheticBatches * count; begin += count) {
        Batch& batch = batches_.emplace_back();
        batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + count);
        batch.targets.assign(tokens.begin() + begin + 1, tokens.begin() + begin + count + 1);
        batch.step_targets = config.batch.tokens_per_step;
        complete(batch, columns, layout);
    }
}

}  // namespace speedrun
