// bf16 matmul tiles with AMX (amx_bf16). One instruction adds a 16 x 32 block times a 32 x 16 block to 16 x
// 16 sums. Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3, TDPBF16PS.
// The right operand is packed into words of pairs, as in bf16_tile.h. The left operand is loaded as 16 rows
// of 64 bytes. Empty if the compiler was not given avx512_bf16.
#pragma once

#ifdef __AVX512BF16__
#if !defined(__AMX_BF16__) && !defined(__AMXBF16__)  // the GCC and the clang 14 spelling
#error "the level avx512_bf16 is compiled with -mamx-tile -mamx-bf16: it serves amx_bf16 too"
#endif
#define SPEEDRUN_AMX_TILES 1

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/bf16_tile.h"
#include "kernels/cpu/gemm_finish.h"

namespace speedrun::cpu {

constexpr int64_t kAmxRows = 16;                           // rows of a matrix register
constexpr int64_t kAmxBytes = 64;                          // bytes of each row
constexpr int64_t kAmxDepth = 2 * kAmxBytes / kWordBytes;  // bf16 elements of each row

// Left operand: 64 bytes of line i from element 32·p on are at data + i·row + p·step, in bytes.
struct AmxLines {
    const char* data;
    int64_t row, step;
};

// Configures the matrix registers of the calling thread while it lives. Registers 0 to 3 hold sums: the first
// two have `upper` rows, the others `lower`. Registers 4 and 5 hold rows of the left operand, 6 and 7 columns
// of the right one. Registers lose their contents.
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
        // Some compilers do not model the memory accesses of these instructions: forbid reordering across.
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(&config);
    }
};

// 32 x 32 sums of `words` pairs (a multiple of 16): line r of a times column c of a panel with rows of
// `stride` bytes. Writes rows of sums `row` bytes apart, or adds to them. Upper: only the first 16 lines. The
// shapes must be configured for the same number of rows.
template <bool Upper, bool Add = false>
inline __attribute__((always_inline)) void multiply_lines(float* sums, int64_t row, AmxLines a,
                                                          const char* panel, int64_t stride, int64_t words) {
    float* const lower_sums = sums + kAmxRows * row / static_cast<int64_t>(sizeof(float));
    __asm__ volatile("" ::: "memory");
    if constexpr (Add) {
        _tile_loadd(0, sums, row);
        _tile_loadd(1, sums + kLanes, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if constexpr (!Upper && Add) {
        _tile_loadd(2, lower_sums, row);
        _tile_loadd(3, lower_sums + kLanes, row);
    } else if constexpr (!Upper) {
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
    _tile_stored(0, sums, row);
    _tile_stored(1, sums + kLanes, row);
    if constexpr (!Upper) {
        _tile_stored(2, lower_sums, row);
        _tile_stored(3, lower_sums + kLanes, row);
    }
    __asm__ volatile("" ::: "memory");
}

// Transposes 32 rows of 16 elements, `stride` elements apart, into 16 lines of 64 bytes. Works per lane of
// 128 bits, in which 8 rows become columns.
inline __attribute__((always_inline)) void transpose_rows(int32_t* lines, const Bf16* x, int64_t stride) {
    constexpr int64_t kHalf = 8;
    for (int64_t half = 0; half < 2; ++half, x += kHalf, lines += kHalf * kLanes) {
        const auto row = [&](int64_t k) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k * stride));
        };
        __m512i r[kHalf], t[kHalf];
        for (int64_t j = 0; j < kHalf; ++j) {
            r[j] = _mm512_inserti32x4(_mm512_castsi128_si512(row(j)), row(j + kHalf), 1);
            r[j] = _mm512_inserti32x4(r[j], row(j + 2 * kHalf), 2);
            r[j] = _mm512_inserti32x4(r[j], row(j + 3 * kHalf), 3);
        }
        for (int64_t j = 0; j < 4; ++j) {  // pairs of rows: columns 0 to 3, and 4 to 7
            t[j] = _mm512_unpacklo_epi16(r[2 * j], r[2 * j + 1]);
            t[j + 4] = _mm512_unpackhi_epi16(r[2 * j], r[2 * j + 1]);
        }
        for (int64_t c = 0; c < kHalf; c += 4) {  // fours of rows: columns c and c + 1, c + 2 and c + 3
            r[c] = _mm512_unpacklo_epi32(t[c], t[c + 1]);
            r[c + 1] = _mm512_unpackhi_epi32(t[c], t[c + 1]);
            r[c + 2] = _mm512_unpacklo_epi32(t[c + 2], t[c + 3]);
            r[c + 3] = _mm512_unpackhi_epi32(t[c + 2], t[c + 3]);
        }
        for (int64_t c = 0; c < kHalf; c += 2) {
            const __m512i first = r[c / 4 * 4 + c / 2 % 2], second = r[c / 4 * 4 + c / 2 % 2 + 2];
            _mm512_store_si512(lines + c * kLanes, _mm512_unpacklo_epi64(first, second));
            _mm512_store_si512(lines + (c + 1) * kLanes, _mm512_unpackhi_epi64(first, second));
        }
    }
}

// Transposes the first `rows` rows and `columns` columns of such a block. The rest is zero.
inline void transpose_part(int32_t* lines, const Bf16* x, int64_t stride, int64_t rows, int64_t columns) {
    if (rows >= kAmxDepth && columns >= kAmxRows) return transpose_rows(lines, x, stride);
    alignas(64) Bf16 block[kAmxDepth * kAmxRows];
    for (int64_t k = 0; k < kAmxDepth; ++k) {
        const __mmask16 lanes = lanes_below(k < rows ? columns : 0);
        _mm256_store_si256(reinterpret_cast<__m256i*>(block + k * kAmxRows),
                           _mm256_maskz_loadu_epi16(lanes, x + (k < rows ? k : 0) * stride));
    }
    transpose_rows(lines, block, kAmxRows);
}

// Tile traits for product.cpp: bf16 matmuls whose K is a multiple of 32.
struct AmxTile {
    using Source = Bf16;
    using Word = int32_t;
    using Rows = AmxLines;
    using Unit = AmxShapes;
    static constexpr int64_t kPerWord = PairTile::kPerWord;
    static constexpr int64_t kRows = 2 * kAmxRows, kStrip = kRows, kPanel = 2 * kLanes;
    static constexpr int64_t kDepthUnit = kAmxDepth;
    static int64_t longest_piece(int64_t /*k*/, bool packed) { return packed ? 2048 : 4096; }
    static int64_t max_of_b(bool packed) { return packed ? 1 << 21 : 1 << 19; }
    // Visits all panels for the same rows. A tile is as wide as a cache line of c and its 32 rows may be on
    // 32 pages: column by column, matmuls with n = 1024 took 1.7 times as long.
    static constexpr bool kRowsFirst = true;

    static bool serves(const Gemm& g) { return g.amx && g.k % kAmxDepth == 0; }
    static bool reads_in_place(const Gemm& g) { return !g.transpose_a; }
    static bool reads_panels_in_place(const Gemm& /*g*/) { return false; }
    static Rows in_place(const Bf16* a, int64_t stride, bool /*transposed*/) {
        return {reinterpret_cast<const char*>(a), stride * 2, kAmxBytes};
    }
    // A packed strip is [words/16][32 lines][16 words].
    static Rows packed(const Word* strip, int64_t i, int64_t width) {
        return {reinterpret_cast<const char*>(strip) + i * kAmxBytes, kAmxBytes, width * kAmxBytes};
    }

    template <class Result>
    static void multiply(int64_t count, Rows a, const Word* panel, int64_t words, int64_t row, int64_t column,
                         const Finish<Result>& end) {
        end.template prefetch<kRows, kPanel>(row, column);
        alignas(64) float sums[kRows * kPanel];
        constexpr int64_t kRowBytes = kPanel * static_cast<int64_t>(sizeof(float));
        const char* right = reinterpret_cast<const char*>(panel);
        if (count != kRows) AmxShapes::set(std::min(count, kAmxRows), std::max<int64_t>(count - kAmxRows, 1));
        if (count <= kAmxRows)
            multiply_lines<true>(sums, kRowBytes, a, right, kPanel * kWordBytes, words);
        else
            multiply_lines<false>(sums, kRowBytes, a, right, kPanel * kWordBytes, words);
        if (count != kRows) AmxShapes::set(kAmxRows, kAmxRows);
        end.template lines<kPanel>(sums, count, row, column);
    }

    template <Side side>
    static constexpr int64_t kStep = side == Side::left ? kAmxDepth : kPerWord;

    // Left: 32 k of `count` lines that are adjacent in memory.
    template <Side side>
    static void pack_row(Word* to, const Bf16* x, int64_t stride, int64_t depth, int64_t count,
                         int64_t width) {
        if constexpr (side == Side::right) {
            PairTile::pack_row<side>(to, x, stride, depth, count, width);
        } else {
            for (int64_t i = 0; i < count; i += kAmxRows)
                transpose_part(to + i * kLanes, x + i, stride, kAmxDepth, count - i);
        }
    }
    // Left: `count` lines, each contiguous along a row of memory.
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
