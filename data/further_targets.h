// Targets beyond the next token.
#pragma once

#include <span>

#include "data/batch.h"

namespace speedrun {

// Fills batch.further_targets for num_tokens ≥ 1 tokens to come, the next one included, from the batch's targets and
// positions: the k-th further target of a token is the target of the token k behind it in its row, -1 where the row has
// ended. prefixes: by token, its longest prefix or -1 (longest_prefixes()); where they are given, the prefix of each token's
// target is one more target, the last. Memory is reused. Throws an internal error for a target that has no entry there.
void add_further_targets(Batch& batch, int64_t num_tokens, std::span<const int32_t> prefixes = {});

}  // namespace speedrun
