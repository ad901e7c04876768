// bf16 products of tiles by the processor's matrix registers (amx_bf16): one instruction adds 16 rows of 32
// elements times 16 columns of as many to 16 x 16 sums (Intel Architecture Instruction Set Extensions
// Programming Reference, chapter 3, TDPBF16PS). The right operand is packed into words of pairs, as for
// bf16_tile.h; of the left one, 16 rows are loaded at once, 64 bytes of each. Empty where the compiler was
// not given avx512_bf16.
#pragma once

#ifdef __AVX512BF16__
#if !defined(__AMX_BF16__) && !defined(__AMXBF16__)  // as GCC and as clang 14 call it
#error "the level avx512_bf16 is compiled with -mamx-tile -mamx-bf16: it serves amx_bf16 too"
#endif
#define SPEEDRUN_AMX_TILES 1

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/bf16_tile.h"
#include "kernels/cpu/product_finish.h"

namespace speedrun::cpu {

constexpr int64_t kAmxRows = 16;                           // of a matrix register
constexpr int64_t kAmxBytes = 64;                          // of each of its rows
constexpr int64_t kAmxDepth = 2 * kAmxBytes / kWordBytes;  // elements of bf16 in it

// The left operand: 64 bytes of line i from element 32·p on are at data + i·row + p·step, in bytes.
struct AmxLines {
    const char* data;
    int64_t row, step;
};

// Shapes of the matrix registers of the calling thread while this lives: sums in registers 0 to 3, of which
// the first two have `upper` rows and the others `lower`, rows of the left operand in 4 and 5, columns of the
// right one in 6 and 7. Registers lose what they hold.
class AmxShapes {
  public:
    explicit AmxShapes(int64_t upper = kAmxRows, int64_t lower = kAmxRows) { set(upper, lower); }
    ~AmxShapes() { _tile_release(); }
    AmxShapes(const AmxShapes&) = delete;
    AmxShapes& operator=(const AmxShapes&) = delete;

    static void set(int64_t upper_rows, int64_t lower_rows) {
        struct alignas(64) Config {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        const auto upper = static_cast<uint8_t>(upper_rows), lower = static_cast<uint8_t>(lower_rows);
        const uint8_t of_register[8] = {upper, upper, lower, lower, upper, lower, kAmxRows, kAmxRows};
        for (int i = 0; i < 8; ++i) {
            config.rows[i] = of_register[i];
            config.row_bytes[i] = kAmxBytes;
        }
        // Some compilers do not know that these instructions read and write memory: nothing may be moved
        // across.
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(&config);
    }
};

// sums[r][c], 32 to a row, = Σ over `words` (a multiple of 16) pairs of a's line r times column c of a panel
// whose rows are `stride` bytes apart. Shapes are set to as many rows; Upper: they are 16 at most.
template <bool Upper>
inline __attribute__((always_inline)) void multiply_lines(float* sums, AmxLines a, const char* panel,
                                                          int64_t stride, int64_t words) {
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (!Upper) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const char* upper = a.data;
    const char* lower = a.data + kAmxRows * a.row;
    for (int64_t p = 0; p < words; p += kAmxBytes / kWordBytes) {
        _tile_loadd(4, upper, a.row);
        _tile_loadd(6, panel, stride);
        _tile_loadd(7, panel + kAmxBytes, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (!Upper) {
            _tile_loadd(5, lower, a.row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            lower += a.step;
        }
        upper += a.step;
        panel += kAmxRows * stride;
    }
    constexpr int64_t kHalf = kLanes, kLine = 2 * kLanes;
    constexpr int64_t kLineBytes = kLine * static_cast<int64_t>(sizeof(float));
    _tile_stored(0, sums, kLineBytes);
    _tile_stored(1, sums + kHalf, kLineBytes);
    if constexpr (!Upper) {
        _tile_stored(2, sums + kAmxRows * kLine, kLineBytes);
        _tile_stored(3, sums + kAmxRows * kLine + kHalf, kLineBytes);
    }
    __asm__ volatile("" ::: "memory");
}

constexpr int64_t kAmxColumns = 64;  // of multiply_strip()

// sums[r][c], 64 to a row, = Σ over `words` pairs of a's line r times column c, for 16 · Count columns and as
// many lines as both shapes were set to.
template <int Count>
inline __attribute__((always_inline)) void multiply_strip(float* sums, AmxLines a, const char* panel,
                                                          int64_t stride, int64_t words) {
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Count == 4) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < words; p += kAmxBytes / kWordBytes) {
        _tile_loadd(4, a.data, a.row);
        _tile_loadd(6, panel, stride);
        _tile_loadd(7, panel + kAmxBytes, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (Count == 4) {
            _tile_loadd(6, panel + 2 * kAmxBytes, stride);
            _tile_loadd(7, panel + 3 * kAmxBytes, stride);
            _tile_dpbf16ps(2, 4, 6);
            _tile_dpbf16ps(3, 4, 7);
        }
        a.data += a.step;
        panel += kAmxRows * stride;
    }
    constexpr int64_t kLineBytes = kAmxColumns * static_cast<int64_t>(sizeof(float));
    _tile_stored(0, sums, kLineBytes);
    _tile_stored(1, sums + kLanes, kLineBytes);
    if constexpr (Count == 4) {
        _tile_stored(2, sums + 2 * kLanes, kLineBytes);
        _tile_stored(3, sums + 3 * kLanes, kLineBytes);
    }
    __asm__ volatile("" ::: "memory");
}

// How product.cpp walks through a product of this kind: one whose K is a multiple of 32.
struct AmxTile {
    using Source = Bf16;
    using Word = int32_t;
    using Rows = AmxLines;
    using Unit = AmxShapes;
    static constexpr int64_t kPerWord = PairTile::kPerWord;
    static constexpr int64_t kRows = 2 * kAmxRows, kStrip = kRows, kPanel = 2 * kLanes;
    static constexpr int64_t kDepthUnit = kAmxDepth;
    static constexpr int64_t kDirectDepth = 4096, kPackedDepth = 2048;
    // Panel after panel for the same rows: a tile is as wide as a line of c, and each of its 32 rows may lie
    // on another page (column after column, products with n = 1024 took 1.7 times as long).
    static constexpr bool kRowsFirst = true;

    static bool serves(const Product& g) { return g.amx && g.k % kAmxDepth == 0; }
    static bool reads_in_place(const Product& g) { return !g.transpose_a; }
    static Rows in_place(const Bf16* a, int64_t stride, bool /*transposed*/) {
        return {reinterpret_cast<const char*>(a), stride * 2, kAmxBytes};
    }
    // A packed strip is [words/16][32 lines][16 words].
    static Rows packed(const Word* strip, int64_t i, int64_t k, int64_t width) {
        return {reinterpret_cast<const char*>(strip + k * width) + i * kAmxBytes, kAmxBytes,
                width * kAmxBytes};
    }

    template <class Result>
    static void multiply(int64_t count, Rows a, const Word* panel, int64_t words, int64_t row, int64_t column,
                         const Finish<Result>& end) {
        end.template prefetch<kRows, kPanel>(row, column);
        alignas(64) float sums[kRows * kPanel];
        const char* right = reinterpret_cast<const char*>(panel);
        if (count != kRows) AmxShapes::set(std::min(count, kAmxRows), std::max<int64_t>(count - kAmxRows, 1));
        if (count <= kAmxRows)
            multiply_lines<true>(sums, a, right, kPanel * kWordBytes, words);
        else
            multiply_lines<false>(sums, a, right, kPanel * kWordBytes, words);
        if (count != kRows) AmxShapes::set(kAmxRows, kAmxRows);
        end.template lines<kPanel>(sums, count, row, column);
    }

    template <Side side>
    static constexpr int64_t kStep = side == Side::left ? kAmxDepth : kPerWord;

    // Left: 32 k of `count` lines that lie side by side in memory.
    template <Side side>
    static void pack_row(Word* to, const Bf16* x, int64_t stride, int64_t depth, int64_t count,
                         int64_t width) {
        if constexpr (side == Side::right) {
            PairTile::pack_row<side>(to, x, stride, depth, count, width);
        } else {
            const __m512i low = word_order(0);
            for (int64_t i = 0; i < count; i += kAmxRows) {
                const __mmask16 lanes = lanes_below(count - i);
                __m512i words[kLanes];
                for (int64_t p = 0; p < kLanes; ++p) {
                    const Bf16* even = x + 2 * p * stride + i;
                    words[p] = _mm512_permutex2var_epi16(
                        _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, even)), low,
                        _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(lanes, even + stride)));
                }
                transpose_words(words);
                for (int64_t r = 0; r < kAmxRows; ++r) _mm512_store_si512(to + (i + r) * kLanes, words[r]);
            }
        }
    }
    // Left: `count` lines of which each lies along a row of memory.
    template <Side side>
    static void pack_lines(Word* to, int64_t stride, const Bf16* x, int64_t row_stride, int64_t count,
                           int64_t depth, int64_t width) {
        if constexpr (side == Side::right) {
            PairTile::pack_lines<side>(to, stride, x, row_stride, count, depth, width);
        } else {
            for (int64_t i = 0; i < count; ++i) {
                for (int64_t k = 0; k < depth; k += kAmxDepth)
                    _mm512_store_si512(to + k / kPerWord * stride + i * kLanes,
                                       _mm512_loadu_si512(x + i * row_stride + k));
            }
        }
    }
};

}  // namespace speedrun::cpu

#endif
