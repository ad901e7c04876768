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
        const Result* addend = base(row, column);
        const float scale = factor();
        const float* const bias = bias_of(column);
        for (int64_t i = 0; i < rows; ++i, values += Columns, to += g.c_stride) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < Columns; j += kLanes) {
                Vec x = load(values + j);
                if (bias) x += load(bias + j);
                if (scale != 0.0f) x = fma(scale, load(to + j), x);
                if (addend) x = fma(g.beta, load(addend + j), x);
                store(to + j, x);
            }
            if (addend) addend += g.c_stride;
        }
    }

    // Reports the memory that the end of a tile reads and writes to ThreadSanitizer.
    void note(int64_t rows, int64_t columns, int64_t row, int64_t column) const {
        const int64_t at = row * g.c_stride + column;
        if (sums) note_writes(sums + row * g.n + column, columns, rows, g.n);
        if (last && g.base) note_reads(static_cast<const Result*>(g.base) + at, columns, rows, g.c_stride);
        if (!sums || last) note_writes(c() + at, columns, rows, g.c_stride);
    }

    // Prefetches the lines of c and base while a tile's sums are computed: they are all read or written at the end.
    template <int Rows, int64_t Columns>
    inline __attribute__((always_inline)) void prefetch(int64_t row, int64_t column) const {
        constexpr int64_t kLineBytes = 64, kRowBytes = Columns * static_cast<int64_t>(sizeof(Result));
        const char* line = reinterpret_cast<const char*>(c() + row * g.c_stride + column);
        const char* addend = reinterpret_cast<const char*>(base(row, column));
        const int64_t next = g.c_stride * static_cast<int64_t>(sizeof(Result));
#pragma GCC unroll 32
        for (int i = 0; i < Rows; ++i, line += next) {
#pragma GCC unroll 4
            for (int64_t b = 0; b < kRowBytes; b += kLineBytes) __builtin_prefetch(line + b, 1);
        }
        if (!addend) return;
#pragma GCC unroll 32
        for (int i = 0; i < Rows; ++i, addend += next) {
#pragma GCC unroll 4
            for (int64_t b = 0; b < kRowBytes; b += kLineBytes) __builtin_prefetch(addend + b, 0);
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
    // Factor of c in this piece of K. In later pieces c holds the sums so far.
    float factor() const {
        if (!first) return 1.0f;
        return g.base ? 0.0f : g.beta;
    }
    // Elements of base to add in this piece of K, or null. The last piece adds them: the result has the bits of the matmul followed by
    // an addition.
    const Result* base(int64_t row, int64_t column) const {
        return last && g.base ? static_cast<const Result*>(g.base) + row * g.c_stride + column : nullptr;
    }
    // Bias of the columns from `column` on, or null. Added in the first piece of K.
    const float* bias_of(int64_t column) const {
        return first && g.bias ? g.bias + column : nullptr;
    }

    template <int Rows, int Count>
    inline __attribute__((always_inline)) void store_whole(const Register (&tile)[Rows][Count], int64_t row,
                                                           int64_t column) const {
        Result* to = c() + row * g.c_stride + column;
        const Result* addend = base(row, column);
        const float scale = factor();
        const float* const bias = bias_of(column);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i, to += g.c_stride) {
#pragma GCC unroll 4
            for (int v = 0; v < Count / kRegisters; ++v) {
                Vec x = vector_of(tile[i], v);
                if (bias) x += load(bias + v * kLanes);
                if (scale != 0.0f) x = fma(scale, load(to + v * kLanes), x);
                if (addend) x = fma(g.beta, load(addend + v * kLanes), x);
                store(to + v * kLanes, x);
            }
            if (addend) addend += g.c_stride;
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
        const bool ends = sums ? last : first;  // the bias is added here
        if (ends && g.bias) x += load(g.bias + j, lanes);
        const int64_t at = i * g.c_stride + j;
        const float scale = !sums ? factor() : g.base ? 0.0f : g.beta;
        if (scale != 0.0f) x = fma(scale, load(c() + at, lanes), x);
        if (const Result* const addend = base(i, j)) x = fma(g.beta, load(addend, lanes), x);
        store(c() + at, x, lanes);
    }
};

}  // namespace speedrun::cpu
