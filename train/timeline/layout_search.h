// Ways in which ranks can share a step, by the time that is predicted for them: what `plan --search` tries.
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
    int64_t memory_bytes = 0;  // of a rank
};
// What a step of a config of one stage would take on these ranks. A usage error: it cannot be run like that.
using PredictLayout = std::function<LayoutCost(const Config& stage, const Ranks& ranks)>;

struct SearchedLayout {
    std::vector<std::string> settings;  // "key=value", where it differs from the config
    LayoutCost cost;
};

struct LayoutSpace {
    int ranks = 1;
    int64_t ranks_per_host = 8;  // ranks that share rows or matrices are of one host
    int64_t memory_bytes = 0;    // that a rank may have
};

struct LayoutSearch {
    std::vector<SearchedLayout> layouts;  // that fit, the fastest first
    int64_t tried = 0, too_large = 0;
};

// Tries, for the same tokens in a step:
//   - every mesh whose axes are powers of two or what is left (parallel.tensor with and without .sequence, .context, .shard
//     and .replicate: all data ranks, or those of a host), and on it every strategy;
//   - the three largest microbatches that fit, each with the least of memory.activation_checkpointing that lets it;
//   - of the kFinalists fastest of these, parallel.bucket_bytes.
// All else is the config's. progress: called with the number of layouts tried so far; may be empty.
inline constexpr size_t kFinalists = 6;
LayoutSearch search_layouts(const Config& stage, const LayoutSpace& space, const PredictLayout& predict,
                            const std::function<void(int64_t)>& progress = {});

}  // namespace speedrun
