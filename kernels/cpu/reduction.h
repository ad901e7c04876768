// Sums over rows. A fixed number of chunks of rows are summed separately, then added in order. So a sum has
// the same bits for any number of threads.
#pragma once

#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/simd.h"

namespace speedrun::cpu {

// sums[c] = Σ over rows of term(x[row][c]). Eight rows at a time, so that sums are loaded and stored once per
// eight rows.
template <class Real, class Term>
void sum_rows(float* sums, const Real* x, int64_t row_stride, int64_t rows, int64_t cols, Term&& term) {
    constexpr int64_t kGroup = 8;
    std::fill(sums, sums + cols, 0.0f);
    int64_t t = 0;
    for (; t + kGroup <= rows; t += kGroup, x += kGroup * row_stride) {
        for_vectors(cols, [&](int64_t i, auto width) {
            Vec total = load(sums + i, width);
#pragma GCC unroll 8
            for (int64_t r = 0; r < kGroup; ++r) total += term(load(x + r * row_stride + i, width));
            store(sums + i, total, width);
        });
    }
    for (; t < rows; ++t, x += row_stride) {
        for_vectors(cols, [&](int64_t i, auto width) {
            store(sums + i, load(sums + i, width) + term(load(x + i, width)), width);
        });
    }
}

// out[i] (+)= Σ over kReductionChunks of partial[chunk·stride + i].
inline void add_chunks(float* out, const float* partial, int64_t stride, int64_t count, bool accumulate) {
    for_vectors(count, [&](int64_t i, auto width) {
        Vec total = accumulate ? load(out + i, width) : Vec();
        for (int64_t chunk = 0; chunk < kReductionChunks; ++chunk)
            total += load(partial + chunk * stride + i, width);
        store(out + i, total, width);
    });
}

}  // namespace speedrun::cpu
