// Sources of a step's batches: a prefetched dataset, or synthetic tokens for timing.
#pragma once

#include <string>
#include <vector>

#include "data/prefetcher.h"
#include "train/config/config.h"
#include "train/engine/prefix_targets.h"
#include "train/engine/step_runner.h"

namespace speedrun {

// Opens the shards matched by `patterns`. Throws a usage error without patterns or for a vocabulary larger than the
// model's, a data error for missing or damaged shards. key: the patterns' config key, for messages.
TokenDataset open_dataset(const Config& config, const std::vector<std::string>& patterns, const char* key);

// Patterns of a source of data.train, and their config key.
struct SourcePatterns {
    std::string key;  // "data.train", "data.train[1].files"
    std::vector<std::string> patterns;
    double weight = 1;
};
// Returns the sources of data.train: one without a mixture.
std::vector<SourcePatterns> train_sources(const Config& config);
// Returns the files of each source of data.train.
std::vector<std::vector<std::string>> train_files(const Config& config);

// The open shards of data.train.
class TrainingData {
  public:
    // Throws as open_dataset().
    explicit TrainingData(const Config& config);
    std::vector<WeightedDataset> sources() const;

  private:
    std::vector<TokenDataset> datasets_;
    std::vector<double> weights_;
};

// Returns LoaderStage::max_document_tokens of a config of one stage.
int64_t document_tokens(const Config& config);

// Options for this rank's batches. Throws as read_prefixes().
BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks = kAlone);
BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks, PrefixTable prefixes);
std::vector<int64_t> rows_per_microbatch(const Config& config);  // index: stage
ValidationLoaderOptions validation_options(const Config& config, const Ranks& ranks = kAlone);

class PrefetchedBatches final : public BatchSource {
  public:
    explicit PrefetchedBatches(Prefetcher& prefetcher) : prefetcher_(prefetcher) {}
    const Batch& next() override { return prefetcher_.next(); }

  private:
    Prefetcher& prefetcher_;
};

// Repeats a few microbatches. Token i has a probability of about 1/(i + 3), as in text. Each sequence is one document.
class SyntheticBatches final : public BatchSource {
  public:
    // config: of one stage
    explicit SyntheticBatches(const Config& config, const Ranks& ranks = kAlone);
    const Batch& next() override { return batches_[next_++ % batches_.size()]; }

  private:
    std::vector<Batch> batches_;
    size_t next_ = 0;
};

}  // namespace speedrun
