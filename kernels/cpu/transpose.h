// Transposition of blocks of 16 x 16 words in registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

#ifdef __AVX512F__

// Transposes a 16 x 16 matrix of words.
inline void transpose_words(__m512i (&r)[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
            r[4 * i + 2 * half] = _mm512_unpacklo_epi64(t[4 * i + half], t[4 * i + 2 + half]);
            r[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(t[4 * i + half], t[4 * i + 2 + half]);
        }
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

#else

// Transposes an 8 x 8 matrix of floats.
inline void transpose_eight(__m256 (&r)[8]) {
    __m256 t[8];
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        for (int half = 0; half < 2; ++half) {
            const __m256 x = t[4 * i + half], y = t[4 * i + 2 + half];
            r[4 * i + 2 * half] = _mm256_shuffle_ps(x, y, 0x44);
            r[4 * i + 2 * half + 1] = _mm256_shuffle_ps(x, y, 0xee);
        }
    }
    for (int i = 0; i < 4; ++i) t[i] = r[i];
    for (int i = 0; i < 4; ++i) {
        const __m256 x = t[i], y = r[i + 4];
        r[i] = _mm256_permute2f128_ps(x, y, 0x20);
        r[i + 4] = _mm256_permute2f128_ps(x, y, 0x31);
    }
}

#endif

// to[c·to_stride + r] = x[r·row_stride + c] as f32, for c < cols and r < 16; zero where r ≥ rows. rows, cols
// ≤ 16. Lines are written in rising order of c, so to_stride may be below 16.
template <class Real>
inline void transpose_block(float* to, int64_t to_stride, const Real* x, int64_t row_stride, int64_t rows,
                            int64_t cols) {
#ifdef __AVX512F__
    __m512i lines[16];
    for (int64_t r = 0; r < kLanes; ++r)
        lines[r] =
            r < rows ? _mm512_castps_si512(load(x + r * row_stride, Part{cols}).r) : _mm512_setzero_si512();
    transpose_words(lines);
    for (int64_t c = 0; c < cols; ++c) _mm512_storeu_si512(to + c * to_stride, lines[c]);
#else
    __m256 lines[2][2][8];  // halves of the columns and of the rows
    for (int64_t r = 0; r < kLanes; ++r) {
        Vec line;
        if (r < rows) line = cols == kLanes ? load(x + r * row_stride) : load(x + r * row_stride, Part{cols});
        lines[0][r / 8][r % 8] = line.low;
        lines[1][r / 8][r % 8] = line.high;
    }
    for (auto& columns : lines) {
        for (auto& eight : columns) transpose_eight(eight);
    }
    // In rising order: if lines are less than 16 apart, the next one overwrites the excess of the last.
    for (int64_t c = 0; c < cols; ++c) {
        for (int half = 0; half < 2; ++half)
            _mm256_storeu_ps(to + c * to_stride + 8 * half, lines[c / 8][half][c % 8]);
    }
#endif
}

}  // namespace speedrun::cpu
