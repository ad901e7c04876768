// bf16 matmul tiles with dot products of pairs (avx512_bf16): each lane adds a[k]·b[k] + a[k+1]·b[k+1] to a
// sum. The right operand is packed into panels: a word holds elements k and k+1 of a column, a vector 16
// columns. Words of the left operand are broadcast; rows in memory already have that layout. Empty if the
// compiler was not given avx512_bf16.
#pragma once

#ifdef __AVX512BF16__
#define SPEEDRUN_BF16_TILES 1

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"
#include "kernels/device/dtype.h"

namespace speedrun::cpu {

constexpr int64_t kWordBytes = 4;  // bytes of a pair of bf16
constexpr int64_t kVectorBytes = 64;

// Left operand as pairs: elements 2p and 2p+1 of row i are the word at data + i·row + p·pair, in bytes.
struct PairRows {
    const char* data;
    int64_t row, pair;
};

inline __mmask32 halves_below(int64_t count) {
    return count >= 2 * kLanes ? 0xffffffffu : (__mmask32{1} << std::max<int64_t>(count, 0)) - 1u;
}

// sums[i][v] += Σ over pairs of row i of a times vector v of the panel. panel: [pairs][stride bytes], 64-byte
// aligned.
template <int Rows, int Vectors>
inline __attribute__((always_inline)) void add_pairs(Register (&sums)[Rows][Vectors], PairRows a,
                                                     const char* panel, int64_t stride, int64_t pairs) {
    const char* left = a.data;
    for (int64_t p = 0; p < pairs; ++p) {
        __m512i right[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) right[v] = _mm512_load_si512(panel + v * kVectorBytes);
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i) {
            int32_t word;
            std::memcpy(&word, left + i * a.row, sizeof word);
            const __m512i factor = _mm512_set1_epi32(word);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) {
                sums[i][v] = _mm512_dpbf16_ps(sums[i][v], reinterpret_cast<__m512bh>(factor),
                                              reinterpret_cast<__m512bh>(right[v]));
            }
        }
        left += a.pair;
        panel += stride;
    }
}

// Permutation that interleaves elements of two registers into words (x[i], y[i]), from element `first` of
// each.
inline __m512i word_order(int first) {
    const __m512i pairs = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                           7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_add_epi16(pairs, _mm512_set1_epi16(static_cast<int16_t>(first)));
}

// Words of two bf16, with the elements of `even` in the lower halves.
inline __m512i words_of(__m256i even, __m256i odd) {
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(pairs, _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1));
}

// Packs two rows of a K x N operand stored by rows, `columns` wide, as words; y null: zeros. Columns up to
// the next whole vector become zero.
inline void pack_row_pair(char* to, const Bf16* x, const Bf16* y, int64_t columns) {
    const __m512i low = word_order(0);
    int64_t j = 0;
    if (y) {
        const __m512i high = word_order(16);
        for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
            const __m512i first = _mm512_loadu_si512(x + j), second = _mm512_loadu_si512(y + j);
            _mm512_store_si512(to + j * kWordBytes, _mm512_permutex2var_epi16(first, low, second));
            _mm512_store_si512(to + (j + kLanes) * kWordBytes,
                               _mm512_permutex2var_epi16(first, high, second));
        }
    }
    for (; j < columns; j += kLanes) {
        const __mmask16 lanes = lanes_below(columns - j);
        const __m512i first = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, x + j));
        const __m512i second =
            y ? _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, y + j)) : _mm512_setzero_si512();
        _mm512_store_si512(to + j * kWordBytes, _mm512_permutex2var_epi16(first, low, second));
    }
}

// Packs all rows of such an operand to panel[pairs][stride bytes]. An odd last row is paired with zeros.
inline void pack_from_rows(char* panel, int64_t stride, const Bf16* x, int64_t row_stride, int64_t columns,
                           int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2) {
        const Bf16* row = x + k * row_stride;
        pack_row_pair(panel + k / 2 * stride, row, k + 1 < depth ? row + row_stride : nullptr, columns);
    }
}

// Packs `columns` columns of a K x N operand stored by columns to panel[pairs][stride bytes]: x +
// j·row_stride holds the K elements of column j.
inline void pack_from_columns(char* panel, int64_t stride, const Bf16* x, int64_t row_stride, int64_t columns,
                              int64_t depth) {
    const int64_t pairs = (depth + 1) / 2;
    for (int64_t j = 0; j < columns; j += kLanes) {
        for (int64_t p = 0; p < pairs; p += kLanes) {
            const __mmask32 valid = halves_below(depth - 2 * p);
            __m512i rows[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) {
                rows[i] = j + i < columns ? _mm512_maskz_loadu_epi16(valid, x + (j + i) * row_stride + 2 * p)
                                          : _mm512_setzero_si512();
            }
            transpose_words(rows);
            const int64_t count = std::min(kLanes, pairs - p);
            for (int64_t i = 0; i < count; ++i)
                _mm512_store_si512(panel + (p + i) * stride + j * kWordBytes, rows[i]);
        }
    }
}

// Tile traits for product.cpp: bf16 pairs.
struct PairTile {
    using Source = Bf16;
    using Word = int32_t;
    using Rows = PairRows;
    struct Unit {};
    static constexpr int64_t kPerWord = 2;  // elements along K
    static constexpr int64_t kRows = 6;     // sums use 24 of the 32 registers
    static constexpr int kCount = 4;
    static constexpr int64_t kStrip =
        48;  // rows of packed a that are adjacent in a strip: whole tiles and whole vectors
    static constexpr int64_t kPanel = kCount * kRegisterLanes;
    static int64_t longest_piece(int64_t /*k*/, bool packed) { return packed ? 1024 : 4096; }
    static int64_t max_of_b(bool packed) { return packed ? 1 << 21 : 1 << 19; }
    static constexpr bool kRowsFirst = false;
    static constexpr int64_t kDepthUnit = kLanes;

    // True if rows of a are whole pairs and contiguous.
    static bool reads_in_place(const Gemm& g) { return !g.transpose_a && g.k % 2 == 0; }
    static bool reads_panels_in_place(const Gemm& /*g*/) { return false; }
    static Rows in_place(const Bf16* a, int64_t stride, bool /*transposed*/) {
        return {reinterpret_cast<const char*>(a), stride * 2, kWordBytes};
    }
    static Rows packed(const Word* strip, int64_t i, int64_t width) {
        return {reinterpret_cast<const char*>(strip + i), kWordBytes, width * kWordBytes};
    }
    template <int Height>
    static inline __attribute__((always_inline)) void add(Register (&sums)[Height][kCount], Rows a,
                                                          const Word* panel, int64_t stride, int64_t words) {
        add_pairs(sums, a, reinterpret_cast<const char*>(panel), stride * kWordBytes, words);
    }
    template <Side>
    static constexpr int64_t kStep = kPerWord;

    // Packs a pair of k of `count` lines that are adjacent in memory; zeros up to whole vectors.
    template <Side>
    static void pack_row(Word* to, const Bf16* x, int64_t stride, int64_t depth, int64_t count,
                         int64_t /*width*/) {
        pack_row_pair(reinterpret_cast<char*>(to), x, depth > 1 ? x + stride : nullptr, count);
    }
    // Packs all k of `count` lines, each contiguous along a row of memory.
    template <Side>
    static void pack_lines(Word* to, int64_t stride, const Bf16* x, int64_t row_stride, int64_t count,
                           int64_t depth, int64_t /*width*/) {
        pack_from_columns(reinterpret_cast<char*>(to), stride * kWordBytes, x, row_stride, count, depth);
    }
};

}  // namespace speedrun::cpu

#endif
