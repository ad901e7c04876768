#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

// sums[r] = Σ_c u[r,c]².
template <class Real>
void row_squares(float* sums, const Real* u, int64_t rows, int64_t cols) {
    cpu::parallel_for(rows, [&](int64_t r) {
        Vec squares{};
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            const Vec v = cpu::load(u + r * cols + i, width);
            squares = fma(v, v, squares);
        });
        sums[r] = cpu::sum(squares);
    });
}

// sums[c] = Σ_r u[r,c]², with partial sums [chunks][C].
template <class Real>
void column_squares(float* sums, float* partial, const Real* u, int64_t rows, int64_t cols) {
    cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
        const auto [begin, end] = cpu::chunk_of(rows, chunk, cpu::kReductionChunks);
        cpu::sum_rows(partial + chunk * cols, u + begin * cols, cols, end - begin, cols,
                      [](Vec v) { return v * v; });
    });
    cpu::add_chunks(sums, partial, cols, cols, false);
}

// Updates v, and turns sums of squares of lines of `length` elements into the factors of the lines.
void factors_from_sums(float* sums, float* v, int64_t lines, int64_t length, const op::NormuonScale& a) {
    float before[cpu::kLanes] = {}, after[cpu::kLanes] = {};  // squared norm of the matrix
    const float fresh = (1.0f - a.beta2) / static_cast<float>(length);
    for (int64_t i = 0; i < lines; ++i) {
        v[i] = a.beta2 * v[i] + fresh * sums[i];
        const float factor = 1.0f / (std::sqrt(v[i]) + a.epsilon);
        before[i % cpu::kLanes] += sums[i];
        after[i % cpu::kLanes] += sums[i] * factor * factor;
        sums[i] = factor;
    }
    const float scaled = cpu::sum(cpu::load(after));
    const float common = scaled > 0.0f ? std::sqrt(cpu::sum(cpu::load(before)) / scaled) : 1.0f;
    for (int64_t i = 0; i < lines; ++i) sums[i] *= common;
}

}  // namespace

void CpuOps::enqueue(const op::NormuonScale& a, Stream& stream) {
    const int64_t rows = a.update.shape[1], cols = a.update.shape[2], lines = num_lines(a.lines, rows, cols);
    const bool rowwise = by_row(a.lines, rows, cols);
    const int64_t partial_size = rowwise ? 0 : cpu::kReductionChunks * cols;
    auto* factors = static_cast<float*>(workspace(stream, (lines + partial_size) * 4));
    cpu::submit(stream, "normuon_scale", [=] {
        if (!std::isfinite(*a.grad_scale.as<float>())) return;
        cpu::with_real(a.update.dtype, [&]<class Real>() {
            for (int64_t matrix = 0; matrix < a.update.shape[0]; ++matrix) {
                Real* u = a.update.as<Real>() + matrix * rows * cols;
                if (rowwise) {
                    row_squares(factors, u, rows, cols);
                } else {
                    column_squares(factors, factors + lines, u, rows, cols);
                }
                factors_from_sums(factors, a.second_moment.as<float>() + matrix * a.second_moment.row_stride,
                                  lines, rowwise ? cols : rows, a);
                cpu::parallel_for(rows, [&](int64_t r) {
                    Real* row = u + r * cols;
                    cpu::for_vectors(cols, [&](int64_t i, auto width) {
                        const Vec factor = rowwise ? Vec(factors[r]) : cpu::load(factors + i, width);
                        cpu::store(row + i, factor * cpu::load(row + i, width), width);
                    });
                });
            }
        });
    });
}

}  // namespace speedrun
