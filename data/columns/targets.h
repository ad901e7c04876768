// Targets of a loss with several tokens: the next tokens, and the prefix of the next one.
#pragma once

#include "data/columns/column.h"

namespace speedrun {

struct TargetRows {
    int64_t num_tokens = 1;  // number of next tokens, at least 1
    bool prefix = false;     // also the longest prefix of the next token

    int64_t count() const { return num_tokens + (prefix ? 1 : 0); }
};

// Column "targets", (count, T). Row k holds Batch::targets of the token k positions later in the row, -1 after the
// row's end. The prefix is the last row, -1 for tokens without a prefix. compute() throws an internal error for a
// target outside the table of prefixes.
Column targets_column(const TargetRows& targets);

}  // namespace speedrun
