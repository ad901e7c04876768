// Matrices of two blocks sharded over the tensor axis: by rows in three stacks, by rows, by columns, and replicated.
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
    const auto cut = [&](Dimension dimension, int64_t size, int64_t stacked) {
        return Extent{dimension, stacked * size / part.size, part.size, stacked};
    };
    const InitRule init{};
    for (const char* block : {"a", "b"}) {
        const auto declare = [&](const char* name, const std::vector<Extent>& extents, int64_t matrices) {
            return table.declare(std::string(block) + name, extents, init, matrices);
        };
        const int qkv = declare(".qkv", {cut(Dimension::head_width, sizes.heads, 3), width}, 3);
        table.set_head_rows(qkv, {.stacks = 2, .heads = 6});
        declare(".out", {width, cut(Dimension::head_width, sizes.heads, 1)}, 1);
        declare(".mix", {{Dimension::width, sizes.width}, {Dimension::numbers, sizes.width / 2}}, 1);
        declare(".up", {cut(Dimension::hidden, sizes.hidden, 1), width}, 1);
        declare(".down", {width, cut(Dimension::hidden, sizes.hidden, 1)}, 1);
        // Rows / columns is 2 for the whole matrix and 4 for one of two column slices.
        declare(".tall", {{Dimension::width, 2 * sizes.heads}, cut(Dimension::hidden, sizes.heads, 1)}, 1);
    }
    table.set_num_units(1);
    return table;
}

}  // namespace speedrun::testing
