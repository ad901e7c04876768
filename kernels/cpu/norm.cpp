#include <cmath>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::row_of;
using cpu::Vec;

const float* optional(Tensor tensor) {
    return tensor.present() ? tensor.as<float>() : nullptr;
}

template <class Real>
void forward_row(const op::NormForward& f, int64_t t) {
    const int64_t cols = f.x.cols();
    const Real* in = row_of<Real>(f.x, t);
    if (f.delta.present()) {
        const Real* added = row_of<Real>(f.delta, t);
        Real* sum = row_of<Real>(f.sum, t);
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            cpu::store(sum + i, cpu::load(in + i, width) + cpu::load(added + i, width), width);
        });
        in = sum;  // continues with the rounded sum, which backward reads
    }
    float center = 0.0f;
    if (f.kind == NormKind::layernorm) {
        Vec sums{};
        cpu::for_vectors(cols, [&](int64_t i, auto width) { sums += cpu::load(in + i, width); });
        center = cpu::sum(sums) / static_cast<float>(cols);
        f.mean.as<float>()[t] = center;
    }
    Vec squares{};
    cpu::for_vectors(cols, [&](int64_t i, auto width) {
        const Vec v = cpu::keep(cpu::load(in + i, width) - center, width);
        squares = fma(v, v, squares);
    });
    const float r = 1.0f / std::sqrt(cpu::sum(squares) / static_cast<float>(cols) + f.epsilon);
    f.rstd.as<float>()[t] = r;
    const float* gain = optional(f.gain);
    const float* bias = optional(f.bias);
    Real* out = row_of<Real>(f.y, t);
    cpu::for_vectors(cols, [&](int64_t i, auto width) {
        Vec v = (cpu::load(in + i, width) - center) * r;
        if (gain) v *= cpu::load(gain + i, width);
        if (bias) v += cpu::load(bias + i, width);
        cpu::store(out + i, v, width);
    });
}

void run(const op::NormForward& f) {
    cpu::with_real(f.x.dtype, [&]<class Real>() {
        cpu::parallel_for(f.x.rows(), [&](int64_t t) { forward_row<Real>(f, t); });
    });
}

// partial, f32 of a chunk of rows: dgain [C], dbias [C]; null if neither is requested.
template <class Real>
void backward_rows(const op::NormBackward& f, cpu::Range rows, float* partial) {
    const int64_t cols = f.s.cols();
    const float inverse = 1.0f / static_cast<float>(cols);
    const float* gain = optional(f.gain);
    float* gain_sums = partial;
    float* bias_sums = partial ? gain_sums + cols : nullptr;
    if (partial) std::fill(gain_sums, gain_sums + 2 * cols, 0.0f);
    for (int64_t t = rows.begin; t < rows.end; ++t) {
        const Real* in = row_of<Real>(f.s, t);
        const Real* upstream = row_of<Real>(f.dy, t);
        const float center = f.kind == NormKind::layernorm ? f.mean.as<float>()[t] : 0.0f;
        const float r = f.rstd.as<float>()[t];
        Vec dots{}, sums{};  // Σ ĝ·ŝ and Σ ĝ, with ĝ = dy·gain
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            const Vec normed = (cpu::load(in + i, width) - center) * r;
            const Vec d = cpu::load(upstream + i, width);
            const Vec dn = gain ? d * cpu::load(gain + i, width) : d;
            dots = fma(dn, normed, dots);
            sums += dn;
            if (partial) {
                cpu::store(gain_sums + i, cpu::load(gain_sums + i, width) + d * normed, width);
                cpu::store(bias_sums + i, cpu::load(bias_sums + i, width) + d, width);
            }
        });
        const float dot = cpu::sum(dots) * inverse;
        const float average = f.kind == NormKind::layernorm ? cpu::sum(sums) * inverse : 0.0f;
        const Real* residual = row_of<Real>(f.dresidual, t);
        Real* out = row_of<Real>(f.ds, t);
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            const Vec normed = (cpu::load(in + i, width) - center) * r;
            const Vec d = cpu::load(upstream + i, width);
            const Vec dn = gain ? d * cpu::load(gain + i, width) : d;
            Vec result = r * (dn - average - normed * dot);
            if (residual) result += cpu::load(residual + i, width);
            cpu::store(out + i, result, width);
        });
    }
}

void run(const op::NormBackward& f, float* partial) {
    const int64_t cols = f.s.cols(), stride = 2 * cols;
    cpu::with_real(f.s.dtype, [&]<class Real>() {
        cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
            backward_rows<Real>(f, cpu::chunk_of(f.s.rows(), chunk, cpu::kReductionChunks),
                                partial ? partial + chunk * stride : nullptr);
        });
    });
    if (!partial) return;
    for (const auto& [out, at] : {std::pair{f.dgain, int64_t{0}}, {f.dbias, cols}}) {
        if (out.present()) cpu::add_chunks(out.as<float>(), partial + at, stride, cols, f.accumulate);
    }
}

}  // namespace

void CpuOps::enqueue(const op::NormForward& a, Stream& stream) {
    cpu::submit(stream, "norm_forward", [a] { run(a); });
    if (a.amax.present())
        enqueue(op::NormTerm{.pieces = {{.out = a.amax, .x = a.y}}, .norm = VectorNorm::infinity}, stream);
}

void CpuOps::enqueue(const op::NormBackward& a, Stream& stream) {
    float* partial = nullptr;
    if (a.dgain.present() || a.dbias.present())
        partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * 2 * a.s.cols() * 4));
    cpu::submit(stream, "norm_backward", [=] { run(a, partial); });
}

}  // namespace speedrun
