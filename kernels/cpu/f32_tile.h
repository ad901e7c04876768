// Products of tiles in f32: what every processor can. bf16 operands become f32 where they are packed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace speedrun::cpu {

// The left operand of a tile: element (i, k) at data[i·row + k·step].
struct F32Rows {
    const float* data;
    int64_t row, step;
};

// sums[i][v] += Σ over k of a's row i times vector v of the panel. panel: [depth][stride].
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void add_products(Vec (&sums)[Rows][Vectors], F32Rows a,
                                                        const float* panel, int64_t stride, int64_t depth) {
    const float* left = a.data;
    for (int64_t k = 0; k < depth; ++k) {
        Vec right[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) right[v] = load(panel + v * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const Vec factor = left[i * a.row];
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) sums[i][v] = fma(factor, right[v], sums[i][v]);
        }
        left += a.step;
        panel += stride;
    }
}

// How product.cpp walks through a product of this kind: `Source` is the operands' type, a word what is packed.
template <class SourceType>
struct F32Tile {
    using Source = SourceType;
    using Word = float;
    using Rows = F32Rows;
    static constexpr int64_t kPerWord = 1;  // elements along K
#ifdef __AVX512F__
    static constexpr int64_t kRows = 12;    // 24 of the 32 registers are sums
    static constexpr int kVectors = 2;
#else
    static constexpr int64_t kRows = 6;     // 12 of the 16
    static constexpr int kVectors = 1;
#endif
    static constexpr int64_t kPanel = kVectors * kLanes;
    static constexpr int64_t kDirectDepth = 1024, kPackedDepth = 1024;

    // Whether rows of a are read in place: they are f32, and not at distances that all want the same few
    // lines of a first-level cache.
    static bool reads_in_place(int64_t stride, int64_t /*k*/) {
        return std::is_same_v<Source, float> && stride % 512 != 0;
    }
    // From `a` on.
    static Rows in_place(const Source* a, int64_t stride) {
        return {reinterpret_cast<const float*>(a), stride, 1};
    }
    // From word k of line i of a packed strip on.
    static Rows packed(const Word* strip, int64_t i, int64_t k, int64_t width) { return {strip + k * width + i, 1, width}; }

    template <int Count>
    static inline __attribute__((always_inline)) void add(Vec (&sums)[Count][kVectors], Rows a, const Word* panel,
                                                          int64_t words) {
        add_products(sums, a, panel, kPanel, words);
    }

    // One k of `count` lines that lie side by side in memory, to `width` words; zeros beyond them.
    static void pack_row(Word* to, const Source* x, int64_t /*stride*/, int64_t /*depth*/, int64_t count, int64_t width) {
        for (int64_t j = 0; j < width; j += kLanes) {
            const int64_t left = count - j;
            if (left >= kLanes) {
                store(to + j, load(x + j));
            } else {
                store(to + j, left > 0 ? load(x + j, Part{left}) : Vec());
            }
        }
    }
    // All k of `count` lines of which each lies along a row of memory, to [depth][stride].
    static void pack_lines(Word* to, int64_t stride, const Source* x, int64_t row_stride, int64_t count,
                           int64_t depth, int64_t width) {
        for (int64_t j = 0; j < width; j += kLanes) {
            const int64_t lines = std::clamp<int64_t>(count - j, 0, kLanes);
            for (int64_t k = 0; k < depth; k += kLanes)
                transpose_block(to + k * stride + j, stride, x + j * row_stride + k, row_stride, lines,
                                std::min(kLanes, depth - k));
        }
    }
};

}  // namespace speedrun::cpu
