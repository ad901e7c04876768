// Targets of a loss over several next tokens and the prefix of the first.
#pragma once

#include "data/columns/column.h"

namespace speedrun {

struct TargetRows {
    int64_t num_tokens = 1;  // number of next tokens, at least 1
    bool prefix = false;     // also the longest proper prefix of the first (token_prefixes.h)

    int64_t count() const { return num_tokens + (prefix ? 1 : 0); }
};

// Returns column "targets", (count, T). Element [k, t] is Batch::targets[t + k], or -1 beyond the end of token t's row.
// With prefix, [num_tokens, t] is the prefix of Batch::targets[t], or -1 without one. compute() then throws an internal
// error if BatchLayout::prefixes is null or has no entry for a target.
Column targets_column(const TargetRows& targets);

}  // namespace speedrun
