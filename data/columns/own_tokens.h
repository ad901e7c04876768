// Column for lookups in a token table that is split by rows over the tensor axis.
#pragma once

#include "data/columns/column.h"

namespace speedrun {

struct OwnRows {
    int64_t first = 0, count = 0;  // in rows of the whole table
};

// Returns column "own tokens": token − first if this rank has the token's row, otherwise count.
inline Column own_tokens_column(const OwnRows& rows) {
    return {.name = "own tokens",
            .kind = ColumnKind::token,
            .after_cut = true,
            .compute = [rows](Column::Values& values, const Batch& batch, const BatchLayout&) {
                values.clear();
                for (const int32_t token : batch.tokens) {
                    const int64_t row = token - rows.first;
                    values.push_back(static_cast<int32_t>(row >= 0 && row < rows.count ? row : rows.count));
                }
            }};
}

}  // namespace speedrun
