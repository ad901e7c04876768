// End of a matmul tile: writes sums in registers to elements of c.
#pragma once

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

// Epilogue of a tile. `Result` is the type of c. Whole tiles stay in registers, unless they have a scale or
// separate sums. Other tiles pass through memory, vector by vector.
template <class Result>
struct Finish {
    const Gemm& g;
    float* sums;  // [m][n], sums of the pieces of K so far; null if c holds them or K is in one piece
    bool first, last;

    template <int Rows, int Count>
    inline __attribute__((always_inline)) void operator()(const Register (&tile)[Rows][Count], int64_t row,
                                                          int64_t column) const {
        constexpr int kVectors = Count / kRegisters;
        if (plain() && column + kVectors * kLanes <= g.n) return store_whole(tile, row, column);
        float lanes[Rows][kVectors * kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) store(lanes[i] + v * kLanes, vector_of(tile[i], v));
        }
        by_vectors<kVectors * kLanes>(lanes[0], Rows, row, column);
    }

    // Sums in memory, [rows][Columns].
    template <int64_t Columns>
    void lines(const float* values, int64_t rows, int64_t row, int64_t column) const {
        if (!plain() || column + Columns > g.n) return by_vectors<Columns>(values, rows, row, column);
        Result* to = c() + row * g.c_stride + column;
        const Result* from = before() + row * g.c_stride + column;
        const float scale = factor();
        const float* const bias = bias_of(column);
        for (int64_t i = 0; i < rows; ++i, values += Columns, to += g.c_stride, from += g.c_stride) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < Columns; j += kLanes) {
                Vec x = load(values + j);
                if (bias) x += load(bias + j);
                if (scale != 0.0f) x = fma(scale, load(from + j), x);
                store(to + j, x);
            }
        }
    }

    // Reports the memory that the end of a tile reads and writes to ThreadSanitizer.
    void note(int64_t rows, int64_t columns, int64_t row, int64_t column) const {
        const int64_t at = row * g.c_stride + column;
        if (sums) note_writes(sums + row * g.n + column, columns, rows, g.n);
        if (first && g.base) note_reads(static_cast<const Result*>(g.base) + at, columns, rows, g.c_stride);
        if (!sums || last) note_writes(c() + at, columns, rows, g.c_stride);
    }

    // Prefetches the lines of c while a tile's sums are computed: they are all read or written at the end.
    template <int Rows, int64_t Columns>
    inline __attribute__((always_inline)) void prefetch(int64_t row, int64_t column) const {
        constexpr int64_t kLineBytes = 64, kRowBytes = Columns * static_cast<int64_t>(sizeof(Result));
        const char* line = reinterpret_cast<const char*>(c() + row * g.c_stride + column);
#pragma GCC unroll 32
        for (int i = 0; i < Rows; ++i, line += g.c_stride * static_cast<int64_t>(sizeof(Result))) {
#pragma GCC unroll 4
            for (int64_t b = 0; b < kRowBytes; b += kLineBytes) __builtin_prefetch(line + b, 1);
        }
    }

  private:
    // True if sums are the result except for beta and bias.
    bool plain() const {
        return !sums && !g.scale_a;
    }
    Result* c() const {
        return static_cast<Result*>(g.c);
    }
    // Source of beta·base in this piece of K, and beta. In later pieces c holds the sums so far.
    const Result* before() const {
        return first && g.base ? static_cast<const Result*>(g.base) : c();
    }
    float factor() const {
        return first ? g.beta : 1.0f;
    }
    // Bias of the columns from `column` on, or null. Added in the first piece of K.
    const float* bias_of(int64_t column) const {
        return first && g.bias ? g.bias + column : nullptr;
    }

    template <int Rows, int Count>
    inline __attribute__((always_inline)) void store_whole(const Register (&tile)[Rows][Count], int64_t row,
                                                           int64_t column) const {
        const int64_t at = row * g.c_stride + column;
        Result* to = c() + at;
        const Result* from = before() + at;
        const float scale = factor();
        const float* const bias = bias_of(column);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i, to += g.c_stride, from += g.c_stride) {
#pragma GCC unroll 4
            for (int v = 0; v < Count / kRegisters; ++v) {
                Vec x = vector_of(tile[i], v);
                if (bias) x += load(bias + v * kLanes);
                if (scale != 0.0f) x = fma(scale, load(from + v * kLanes), x);
                store(to + v * kLanes, x);
            }
        }
    }

    template <int64_t Columns>
    void by_vectors(const float* values, int64_t rows, int64_t row, int64_t column) const {
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < Columns && column + j < g.n; j += kLanes)
                store_vector(load(values + i * Columns + j), row + i, column + j,
                             Part{std::min(kLanes, g.n - column - j)});
        }
    }

    void store_vector(Vec x, int64_t i, int64_t j, Part lanes) const {
        if (g.scale_a) x *= *g.scale_a * *g.scale_b;
        float* sum = sums ? sums + i * g.n + j : nullptr;
        if (sums && !first) x += load(sum, lanes);
        if (sums && !last) return store(sum, x, lanes);
        const bool ends = sums ? last : first;  // beta and bias are applied here
        if (ends && g.bias) x += load(g.bias + j, lanes);
        const int64_t at = i * g.c_stride + j;
        if (sums) {
            const Result* base = g.base ? static_cast<const Result*>(g.base) : c();
            if (g.beta != 0.0f) x = fma(g.beta, load(base + at, lanes), x);
        } else if (factor() != 0.0f) {
            x = fma(factor(), load(before() + at, lanes), x);
        }
        store(c() + at, x, lanes);
    }
};

}  // namespace speedrun::cpu
