// Searches the layouts in which ranks can share a step, ranked by predicted time: `plan --search`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct LayoutCost {
    double step_ms = 0, exposed_ms = 0;
    int64_t memory_bytes = 0;  // per rank
};
// Predicts a step of a config of one stage on these ranks. Throws a usage error if the config cannot run on them.
using PredictLayout = std::function<LayoutCost(const Config& stage, const Ranks& ranks)>;

struct SearchedLayout {
    std::vector<std::string> settings;  // "key=value" for each difference from the config
    LayoutCost cost;
};

struct LayoutSpace {
    int ranks = 1;
    int64_t ranks_per_host = 8;  // ranks that share rows or matrices are on one host
    int64_t memory_bytes = 0;    // limit per rank
};

struct LayoutSearch {
    std::vector<SearchedLayout> layouts;  // layouts that fit in memory, fastest first
    int64_t tried = 0, too_large = 0;
};

// Tries, for the same number of tokens per step:
//   - every mesh with power-of-two axes or the remaining factor (parallel.tensor with and without .sequence, .context, .shard
//   and .replicate: all data ranks, or the data ranks of a host), each with every strategy;
//   - the three largest microbatches that fit, each with the least memory.activation_checkpointing that makes it fit;
//   - for the kFinalists fastest of these, parallel.bucket_bytes.
// All other keys are the config's. progress: called with the number of layouts tried; may be empty.
inline constexpr size_t kFinalists = 6;
LayoutSearch search_layouts(const Config& stage, const LayoutSpace& space, const PredictLayout& predict,
                            const std::function<void(int64_t)>& progress = {});

}  // namespace speedrun
