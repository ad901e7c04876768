// Matrices of two blocks sharded over the tensor axis: by rows in three stacks, equal ones in the first block, by rows, by
// columns, and replicated.
#pragma once

#include "train/parameters/parameter_table.h"

namespace speedrun::testing {

// sizes of the whole matrices, each split into part.size equal slices
struct CutSizes {
    int64_t width = 10, heads = 12, hidden = 24;
};

inline ParameterTable cut_matrices(const TensorSlice& part, const CutSizes& sizes = {}) {
    ParameterTable table(part.index);
    const Extent width{Dimension::width, sizes.width};
    const auto cut = [&](Dimension dimension, int64_t size) {
        return Extent{dimension, size / part.size, part.size};
    };
    const InitRule init{};
    for (const char* block : {"a", "b"}) {
        const int64_t heads = sizes.heads, of_v = *block == 'a' ? heads : 2 * heads;
        Extent qkv_rows = cut(Dimension::head_width, 2 * heads + of_v);
        for (const int64_t rows : {heads, heads, of_v}) qkv_rows.stacks.push_back(rows / part.size);
        const auto declare = [&](const char* name, const std::vector<Extent>& extents) {
            return table.declare(std::string(block) + name, extents, init);
        };
        const int qkv = declare(".qkv", {qkv_rows, width});
        table.set_head_rows(qkv, {.stacks = 2, .heads = 6});
        declare(".out", {width, cut(Dimension::head_width, of_v)});
        declare(".mix", {{Dimension::width, sizes.width}, {Dimension::numbers, sizes.width / 2}});
        declare(".up", {cut(Dimension::hidden, sizes.hidden), width});
        declare(".down", {width, cut(Dimension::hidden, sizes.hidden)});
        // Rows / columns is 2 for the whole matrix and 4 for one of two column slices.
        declare(".tall", {{Dimension::width, 2 * sizes.heads}, cut(Dimension::hidden, sizes.heads)});
    }
    table.set_num_units(1);
    return table;
}

}  // namespace speedrun::testing
