// Token prefixes that a loss counts as targets (LossConfig::prefix_weight).
#pragma once

#include "data/columns/column.h"
#include "train/config/config.h"

namespace speedrun {

// Reads the prefixes of data.train's tokens from data.vocabulary or the dataset's own vocabulary. Returns null if no
// stage's loss counts prefixes. Throws a usage error, with the key, without a vocabulary or for byte tokens. Throws a
// data error for a vocabulary that does not fit.
PrefixTable read_prefixes(const Config& config);

// Returns a table for batches with arbitrary content, in warm-up and timing: the prefix of token i is i/2. Null
// if the model's loss counts no prefixes.
PrefixTable made_up_prefixes(const ModelConfig& model);

}  // namespace speedrun
