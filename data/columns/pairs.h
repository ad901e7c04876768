// Columns for attention in pairs of heads, where each token has two rows.
#pragma once

#include "data/columns/column.h"

namespace speedrun {

struct PairedIds {
    const char* name;
    std::vector<int32_t> Batch::*of;
    int32_t step;  // id of the second row minus id of the first
};

// Ids 2i and 2i + step of each id i: (T, 2).
inline Column paired_column(const PairedIds& ids) {
    return {.name = ids.name,
            .kind = ColumnKind::position,
            .per_token = 2,
            .after_cut = true,
            .compute = [ids](Column::Values& values, const Batch& batch, const BatchLayout&) {
                values.clear();
                for (const int32_t id : batch.*ids.of) {
                    values.push_back(2 * id);
                    values.push_back(2 * id + ids.step);
                }
            }};
}

// Positions of the rows of even and odd heads.
inline Column paired_positions_column() {
    return paired_column({.name = "positions of pairs", .of = &Batch::positions, .step = 1});
}
// First visible row, equal for both rows.
inline Column paired_first_key_column() {
    return paired_column({.name = "first_key of pairs", .of = &Batch::first_key, .step = 0});
}

}  // namespace speedrun
