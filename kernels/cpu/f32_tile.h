// Products of tiles in f32: what every processor can. bf16 operands become f32 where they are packed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/product.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace speedrun::cpu {

// The left operand of a tile: element (i, k) at data[i·row + k·step].
struct F32Rows {
    const float* data;
    int64_t row, step;
};

// sums[i][r] += Σ over k of a's row i times register r of the panel. panel: [depth][stride].
template <int Rows, int Count>
inline __attribute__((always_inline)) void add_products(Register (&sums)[Rows][Count], F32Rows a,
                                                        const float* panel, int64_t stride, int64_t depth) {
    const float* left = a.data;
    // With twelve registers of sums the multipliers are busy throughout only if counting steps are rare (Zen 3: 82 and 90 GFLOP/s).
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

// How product.cpp walks through a product of this kind: `Source` is the operands' type, a word what is
// packed.
template <class SourceType>
struct F32Tile {
    using Source = SourceType;
    using Word = float;
    using Rows = F32Rows;
    struct Unit {};                         // what a thread must set up first: nothing
    static constexpr int64_t kPerWord = 1;  // elements along K
    static constexpr int64_t kRows = 6;
#ifdef __AVX512F__
    static constexpr int kCount = 4;  // registers of a row: 24 of the 32 are sums
#else
    static constexpr int kCount = 2;  // 12 of the 16
#endif
    static constexpr int64_t kStrip = kRows;  // of packed rows of a that lie side by side
    static constexpr int64_t kPanel = kCount * kRegisterLanes;
    // The most elements along K at a time. A panel of b comes from a second-level cache as fast as it is needed, so that a short
    // K stays in one piece, whose sums pass through memory once; of a long one the panels of all columns are to fit that cache.
    // Equal at all levels, as the order of sums. A bf16 result would need memory for sums of pieces, so there are few.
    static int64_t longest_piece(int64_t k, bool /*packed*/) {
        if (!std::is_same_v<Source, float>) return 1024;
        return k <= 768 ? 768 : 384;
    }
    // The most words of b at a time: what a second-level cache holds; all columns where a would be packed again for each range.
    static int64_t most_of_b(bool /*packed*/) {
        return std::is_same_v<Source, float> ? 1 << 19 : 1 << 20;
    }
    static constexpr bool kRowsFirst = false;      // a panel stays in a near cache while rows pass
    static constexpr int64_t kDepthUnit = kLanes;  // pieces of K are multiples of this

    // Whether op(a) is read in place: it is f32, and packing it would not pay. Packing moves every element
    // once; what it saves grows with n, most where rows lie at distances that all want the same few lines of
    // a first-level cache, and where they are long.
    static bool reads_in_place(const Product& g) {
        if (!std::is_same_v<Source, float>) return false;
        if (g.transpose_a) return g.n <= 256 && g.m <= 512 && g.a_stride % 512 != 0;
        return g.a_stride % 1024 != 0 || g.n < 512;
    }
    // Whether op(b) is: it is f32, of whole panels, so small that a second-level cache holds it wherever its rows lie, and met by
    // too few rows of a for packing to pay.
    static bool reads_panels_in_place(const Product& g) {
        return std::is_same_v<Source, float> && !g.transpose_b && g.n % kPanel == 0 &&
               g.b_stride % 512 != 0 && g.m <= 1024 && g.n <= 384 && g.k <= 768;
    }
    // From `a` on.
    static Rows in_place(const Source* a, int64_t stride, bool transposed) {
        const auto* data = reinterpret_cast<const float*>(a);
        return transposed ? Rows{data, 1, stride} : Rows{data, stride, 1};
    }
    // From line i of a packed strip on.
    static Rows packed(const Word* strip, int64_t i, int64_t width) {
        return {strip + i, 1, width};
    }

    template <int Height>
    static inline __attribute__((always_inline)) void add(Register (&sums)[Height][kCount], Rows a,
                                                          const Word* panel, int64_t stride, int64_t words) {
        add_products(sums, a, panel, stride, words);
    }

    template <Side>
    static constexpr int64_t kStep = kPerWord;  // elements along K that pack_row() takes

    // One k of `count` lines that lie side by side in memory, to `width` words; zeros beyond them.
    template <Side>
    static void pack_row(Word* to, const Source* x, int64_t /*stride*/, int64_t /*depth*/, int64_t count,
                         int64_t width) {
        for (int64_t j = 0; j < width; j += kLanes) {
            const int64_t wide = std::min(kLanes, width - j), real = std::clamp<int64_t>(count - j, 0, wide);
            const Vec line = real == kLanes ? load(x + j) : load(x + j, Part{real});
            wide == kLanes ? store(to + j, line) : store(to + j, line, Part{wide});
        }
    }
    // The rows `k` of `count` lines that lie side by side in memory, to strips `strip` words apart. As many
    // strips at a time as have their ends in a first-level cache; of a row eight elements at once, of which the
    // next row covers the last two: so not of the last row, whose next one is another piece of work.
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
    // All k of `count` lines of which each lies along a row of memory, to [depth][stride]. A strip may be
    // narrower than a vector: what is written beyond a row belongs to the next one, which comes later, or
    // behind the last.
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
