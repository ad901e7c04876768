// The end of a bf16 product's tile: from sums in registers to elements of c.
#pragma once

#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/bf16_tile.h"

#ifdef SPEEDRUN_BF16_TILES

namespace speedrun::cpu {

constexpr int64_t kPanel = 64;  // columns of a tile: four vectors

// What becomes of a tile's sums. The two common ends, whole tiles stored as they are in bf16, or stored in or
// added to an f32 result, are short and stay in registers; the rest goes through memory, vector by vector.
struct Finish {
    const Bf16Product& g;
    float* sums;  // [m][n], of the pieces of K so far; null where c holds them or K is in one piece
    bool first, last;

    template <int Rows>
    void operator()(const __m512 (&tile)[Rows][4], int64_t row, int64_t column) const {
        const bool simple = !sums && !g.bias && column + kPanel <= g.n;
        if (simple && g.c_is_f32) return store_f32(tile, row, column);
        if (simple) return store_bf16(tile, row, column);
        float lanes[Rows][kPanel];
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) _mm512_storeu_ps(lanes[i] + v * kLanes, tile[i][v]);
        }
        for (int i = 0; i < Rows; ++i) {
            for (int64_t j = 0; j < kPanel && column + j < g.n; j += kLanes) {
                store_vector(_mm512_loadu_ps(lanes[i] + j), row + i, column + j,
                             lanes_below(g.n - column - j));
            }
        }
    }

  private:
    template <int Rows>
    void store_bf16(const __m512 (&tile)[Rows][4], int64_t row, int64_t column) const {
        const int64_t at = row * g.c_stride + column;
        Bf16* to = static_cast<Bf16*>(g.c) + at;
        const Bf16* from = base() + at;
        const __m512 factor = _mm512_set1_ps(g.beta);
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i, to += g.c_stride, from += g.c_stride) {
#pragma GCC unroll 2
            for (int v = 0; v < 4; v += 2) {
                __m512 x = tile[i][v], y = tile[i][v + 1];
                if (g.beta != 0.0f) {
                    x = _mm512_fmadd_ps(factor, reinterpret_cast<__m512>(load(from + v * kLanes)), x);
                    y = _mm512_fmadd_ps(factor, reinterpret_cast<__m512>(load(from + (v + 1) * kLanes)), y);
                }
                _mm512_storeu_si512(to + v * kLanes, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)));
            }
        }
    }

    template <int Rows>
    void store_f32(const __m512 (&tile)[Rows][4], int64_t row, int64_t column) const {
        float* to = static_cast<float*>(g.c) + row * g.c_stride + column;
        const float scale = first ? g.beta : 1.0f;
        const __m512 factor = _mm512_set1_ps(scale);
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i, to += g.c_stride) {
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                __m512 x = tile[i][v];
                if (scale != 0.0f) x = _mm512_fmadd_ps(factor, _mm512_loadu_ps(to + v * kLanes), x);
                _mm512_storeu_ps(to + v * kLanes, x);
            }
        }
    }

    const Bf16* base() const {
        return g.base ? g.base : static_cast<const Bf16*>(g.c);
    }

    void store_vector(__m512 x, int64_t i, int64_t j, __mmask16 lanes) const {
        if (sums && !first) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, sums + i * g.n + j));
        if (sums && !last) return _mm512_mask_storeu_ps(sums + i * g.n + j, lanes, x);
        const bool ends = sums ? last : first;  // where beta and bias come in
        if (ends && g.bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, g.bias + j));
        if (g.c_is_f32) {
            float* to = static_cast<float*>(g.c) + i * g.c_stride + j;
            const float factor = first ? g.beta : 1.0f;
            if (factor != 0.0f)
                x = _mm512_fmadd_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(lanes, to), x);
            return _mm512_mask_storeu_ps(to, lanes, x);
        }
        Bf16* to = static_cast<Bf16*>(g.c) + i * g.c_stride + j;
        if (g.beta != 0.0f) {
            const __m256i before = _mm256_maskz_loadu_epi16(lanes, base() + i * g.c_stride + j);
            const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(before), 16);
            x = _mm512_fmadd_ps(_mm512_set1_ps(g.beta), _mm512_castsi512_ps(wide), x);
        }
        _mm256_mask_storeu_epi16(to, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
};

}  // namespace speedrun::cpu

#endif
