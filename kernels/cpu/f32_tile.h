// f32 matmul tiles, for every processor. bf16 operands are converted when they are packed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace speedrun::cpu {

// Left operand of a tile: element (i, k) at data[i·row + k·step].
struct F32Rows {
    const float* data;
    int64_t row, step;
};

// sums[i][r] += Σ over k of row i of a times register r of the panel. panel: [depth][stride].
template <int Rows, int Count>
inline __attribute__((always_inline)) void add_products(Register (&sums)[Rows][Count], F32Rows a,
                                                        const float* panel, int64_t stride, int64_t depth) {
    const float* left = a.data;
    // Twelve registers of sums keep the multipliers busy only if loop overhead is rare (Zen 3: 82 and 90
    // GFLOP/s).
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
        Register right[Count];
#pragma GCC unroll 4
        for (int r = 0; r < Count; ++r) right[r] = load_register(panel + r * kRegisterLanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const Register factor = broadcast_register(left[i * a.row]);
#pragma GCC unroll 4
            for (int r = 0; r < Count; ++r) sums[i][r] = fma_register(factor, right[r], sums[i][r]);
        }
        left += a.step;
        panel += stride;
    }
}

// Tile traits for product.cpp: `Source` is the operands' type, Word the packed type.
template <class SourceType>
struct F32Tile {
    using Source = SourceType;
    using Word = float;
    using Rows = F32Rows;
    struct Unit {};                         // per-thread setup: none
    static constexpr int64_t kPerWord = 1;  // elements along K
    static constexpr int64_t kRows = 6;
#ifdef __AVX512F__
    static constexpr int kCount = 4;  // registers of a row; sums use 24 of the 32
#else
    static constexpr int kCount = 2;  // sums use 12 of the 16
#endif
    static constexpr int64_t kStrip = kRows;  // rows of packed a in a strip
    static constexpr int64_t kPanel = kCount * kRegisterLanes;
    // Maximum elements along K per piece. The L2 cache delivers a panel of b as fast as it is needed. So a
    // short K stays in one piece, and its sums pass through memory once. For a long K the panels of all
    // columns must fit the L2 cache. Equal at all levels, for the same summation order. Few pieces: a bf16
    // result needs extra memory for their sums.
    static int64_t longest_piece(int64_t k, bool /*packed*/) {
        if (!std::is_same_v<Source, float>) return 1024;
        return k <= 768 ? 768 : 384;
    }
    // Maximum words of packed b: the size of the L2 cache, or all columns if a would be repacked for each
    // range.
    static int64_t max_of_b(bool /*packed*/) {
        return std::is_same_v<Source, float> ? 1 << 19 : 1 << 20;
    }
    static constexpr bool kRowsFirst = false;      // a panel stays in a near cache while rows pass
    static constexpr int64_t kDepthUnit = kLanes;  // pieces of K are multiples of this

    // True if op(a) is read in place: it is f32 and packing costs more than it saves. Packing moves every
    // element once. Its gain grows with n, and with long rows whose distances conflict for the same few lines
    // of the L1 cache.
    static bool reads_in_place(const Gemm& g) {
        if (!std::is_same_v<Source, float>) return false;
        if (g.transpose_a) return g.n <= 256 && g.m <= 512 && g.a_stride % 512 != 0;
        return g.a_stride % 1024 != 0 || g.n < 512;
    }
    // True if op(b) is read in place: f32, whole panels, fits the L2 cache at any row distance, and is used
    // by too few rows of a for packing to pay.
    static bool reads_panels_in_place(const Gemm& g) {
        return std::is_same_v<Source, float> && !g.transpose_b && g.n % kPanel == 0 &&
               g.b_stride % 512 != 0 && g.m <= 1024 && g.n <= 384 && g.k <= 768;
    }
    // Rows starting at `a`, unpacked.
    static Rows in_place(const Source* a, int64_t stride, bool transposed) {
        const auto* data = reinterpret_cast<const float*>(a);
        return transposed ? Rows{data, 1, stride} : Rows{data, stride, 1};
    }
    // Rows starting at line i of a packed strip.
    static Rows packed(const Word* strip, int64_t i, int64_t width) {
        return {strip + i, 1, width};
    }

    template <int Height>
    static inline __attribute__((always_inline)) void add(Register (&sums)[Height][kCount], Rows a,
                                                          const Word* panel, int64_t stride, int64_t words) {
        add_products(sums, a, panel, stride, words);
    }

    template <Side>
    static constexpr int64_t kStep = kPerWord;  // elements along K per pack_row()

    // Packs one k of `count` lines that are adjacent in memory, to `width` words, zero-padded.
    template <Side>
    static void pack_row(Word* to, const Source* x, int64_t /*stride*/, int64_t /*depth*/, int64_t count,
                         int64_t width) {
        for (int64_t j = 0; j < width; j += kLanes) {
            const int64_t wide = std::min(kLanes, width - j), valid = std::clamp<int64_t>(count - j, 0, wide);
            const Vec line = valid == kLanes ? load(x + j) : load(x + j, Part{valid});
            wide == kLanes ? store(to + j, line) : store(to + j, line, Part{wide});
        }
    }
    // Packs the rows `k` of `count` lines that are adjacent in memory, to strips `strip` words apart. The
    // ends of the strips handled together fit the L1 cache. Writes eight elements per row; the next row
    // overwrites the last two. The last row is exact, as the row after it is another piece of work.
    static void pack_strips(Word* to, int64_t strip, const Source* x, int64_t stride, Range k,
                            int64_t count) {
        constexpr int64_t kTogether = 32 * kStrip, kWide = 8;
        const int64_t whole = count < kWide ? 0 : (count - kWide + kStrip) / kStrip * kStrip;
        for (int64_t first = 0; first < count; first += kTogether) {
            const int64_t end = std::min(first + kTogether, count);
            for (int64_t row = k.begin; row < k.end; ++row) {
                const Source* from = x + row * stride;
                Word* at = to + first / kStrip * strip + row * kStrip;
                int64_t j = first;
                for (; row + 1 < k.end && j < std::min(end, whole); j += kStrip, at += strip)
                    store_eight(at, from + j);
                for (; j < end; j += kStrip, at += strip)
                    pack_row<Side::left>(at, from + j, stride, 1, std::min(kStrip, count - j), kStrip);
            }
        }
    }
    // Packs all k of `count` lines, each contiguous along a row of memory, to [depth][stride]. A strip may be
    // narrower than a vector: the excess of a row is overwritten by the next row, or is after the last row.
    template <Side>
    static void pack_lines(Word* to, int64_t stride, const Source* x, int64_t row_stride, int64_t count,
                           int64_t depth, int64_t width) {
        for (int64_t j = 0; j < width; j += kLanes) {
            const int64_t lines = std::clamp<int64_t>(count - j, 0, kLanes);
            for (int64_t k = 0; k < depth; k += kLanes)
                transpose_block(to + k * stride + j, stride, x + j * row_stride + k, row_stride, lines,
                                std::min(kLanes, depth - k));
        }
    }

  private:
    static void store_eight(Word* to, const float* x) {
        _mm256_storeu_ps(to, _mm256_loadu_ps(x));
    }
    static void store_eight(Word* to, const Bf16* x) {
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
        _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
    }
};

}  // namespace speedrun::cpu
