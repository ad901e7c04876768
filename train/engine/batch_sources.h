// Where the batches of steps come from: a dataset, prefetched, or made-up tokens for timing.
#pragma once

#include <string>
#include <vector>

#include "data/prefetcher.h"
#include "train/config/config.h"
#include "train/engine/prefix_targets.h"
#include "train/engine/step_runner.h"

namespace speedrun {

// The shards that the patterns of `key` name. Usage errors: no pattern, or a vocabulary larger than the
// model's; data errors for what is missing or damaged.
TokenDataset open_dataset(const Config& config, const std::vector<std::string>& patterns, const char* key);

// Batches of this rank. Throws what read_prefixes() throws.
BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks = kAlone);
BatchLoaderOptions loader_options(const Config& config, const Ranks& ranks, PrefixTable prefixes);
std::vector<int64_t> rows_per_microbatch(const Config& config);  // by stage
ValidationLoaderOptions validation_options(const Config& config, const Ranks& ranks = kAlone);

class PrefetchedBatches final : public BatchSource {
  public:
    explicit PrefetchedBatches(Prefetcher& prefetcher) : prefetcher_(prefetcher) {}
    const Batch& next() override { return prefetcher_.next(); }

  private:
    Prefetcher& prefetcher_;
};

// Repeats a few microbatches: token ids with the frequencies of text (id i about in proportion
// to 1/(i + 3)), each sequence a document of its own.
class SyntheticBatches final : public BatchSource {
  public:
    // config: of one stage.
    explicit SyntheticBatches(const Config& config, const Ranks& ranks = kAlone);
    const Batch& next() override { return batches_[next_++ % batches_.size()]; }

  private:
    std::vector<Batch> batches_;
    size_t next_ = 0;
};

}  // namespace speedrun
