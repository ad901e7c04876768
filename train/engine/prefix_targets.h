// The prefixes of tokens that a loss counts as targets (LossConfig::prefix_weight).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// By token, as longest_prefixes() has them: what add_further_targets() makes a row of targets from. Null: none is asked for.
using PrefixTable = std::shared_ptr<const std::vector<int32_t>>;

inline std::span<const int32_t> prefixes_in(const PrefixTable& table) {
    return table ? std::span<const int32_t>(*table) : std::span<const int32_t>{};
}

// Reads the prefixes of data.train's tokens from data.vocabulary or their dataset's own vocabulary. Null if no stage's loss counts
// prefixes.
// Throws a usage error, with key, where there is no vocabulary or tokens are bytes, a data error for one that does not fit.
PrefixTable read_prefixes(const Config& config);

// Stands in for read_prefixes() where nothing is read, in warm-up and timing: the prefix of token i is i/2. Null if this stage's
// loss counts no prefixes.
PrefixTable made_up_prefixes(const Config& config);

}  // namespace speedrun
