// C (+)= A·B for tiles that live in the first-level caches: the inner loop of attention.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

// A scalar view of A: element (i, j) at data[i·row + j·col], so that Aᵀ costs nothing.
struct TileView {
    const float* data;
    int64_t row, col;
};

// Rows x 16·Vectors accumulators stay in registers over the whole sum.
template <int Rows, int Vectors>
inline void tile_block(float* c, int64_t ldc, TileView a, const float* b, int64_t ldb, int64_t depth,
                       bool accumulate) {
    Vec sums[Rows][Vectors];
    for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < Vectors; ++v) sums[i][v] = accumulate ? load(c + i * ldc + v * kLanes) : Vec{};
    }
    for (int64_t k = 0; k < depth; ++k) {
        Vec row[Vectors];
        for (int v = 0; v < Vectors; ++v) row[v] = load(b + k * ldb + v * kLanes);
        for (int i = 0; i < Rows; ++i) {
            const Vec factor = a.data[i * a.row + k * a.col];
            for (int v = 0; v < Vectors; ++v) sums[i][v] = fma(factor, row[v], sums[i][v]);
        }
    }
    for (int i = 0; i < Rows; ++i) {
        for (int v = 0; v < Vectors; ++v) store(c + i * ldc + v * kLanes, sums[i][v]);
    }
}

template <int Vectors>
inline void tile_columns(float* c, int64_t ldc, TileView a, const float* b, int64_t ldb, int64_t rows,
                         int64_t depth, bool accumulate) {
    constexpr int kRows = 4;
    int64_t i = 0;
    for (; i + kRows <= rows; i += kRows) {
        tile_block<kRows, Vectors>(c + i * ldc, ldc, {a.data + i * a.row, a.row, a.col}, b, ldb, depth,
                                   accumulate);
    }
    for (; i < rows; ++i) {
        tile_block<1, Vectors>(c + i * ldc, ldc, {a.data + i * a.row, a.row, a.col}, b, ldb, depth,
                               accumulate);
    }
}

// c: rows x cols (cols a multiple of 16); a: rows x depth; b: depth x cols.
inline void tile_product(float* c, int64_t ldc, TileView a, const float* b, int64_t ldb, int64_t rows,
                         int64_t cols, int64_t depth, bool accumulate) {
    int64_t j = 0;
    for (; j + 4 * kLanes <= cols; j += 4 * kLanes) {
        tile_columns<4>(c + j, ldc, a, b + j, ldb, rows, depth, accumulate);
    }
    for (; j < cols; j += kLanes) tile_columns<1>(c + j, ldc, a, b + j, ldb, rows, depth, accumulate);
}

}  // namespace speedrun::cpu
