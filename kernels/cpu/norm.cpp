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

// norm_forward is mix_norm_forward without a mix: `sum` is absent, and `entered` receives x + delta.

template <class Real>
void forward_row(const op::MixNormForward& f, int64_t t) {
    const int64_t cols = f.x.cols();
    const Real* in = row_of<Real>(f.x, t);
    // Continues with the rounded sums, which backward reads.
    if (f.delta.present()) {
        const Real* added = row_of<Real>(f.delta, t);
        Real* entered = row_of<Real>(f.entered, t);
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            cpu::store(entered + i, cpu::load(in + i, width) + cpu::load(added + i, width), width);
        });
        in = entered;
    }
    if (f.sum.present()) {
        const float cx = f.mix.coefficients.as<float>()[0], cz = f.mix.coefficients.as<float>()[1];
        const Real* z = row_of<Real>(f.mix.z, t);
        Real* mixed = row_of<Real>(f.sum, t);
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            cpu::store(mixed + i, cx * cpu::load(in + i, width) + cz * cpu::load(z + i, width), width);
        });
        in = mixed;
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

void run(const op::MixNormForward& f) {
    cpu::with_real(f.x.dtype, [&]<class Real>() {
        cpu::parallel_for(f.x.rows(), [&](int64_t t) { forward_row<Real>(f, t); });
    });
}

// norm_backward is mix_norm_backward without a mix: dz, dcoefficients and entered are absent.

bool has_parameters(const op::MixNormBackward& f) {
    return f.dgain.present() || f.dbias.present();
}

// f32 of a chunk of rows: dgain [C], dbias [C], dcoefficients [2].
int64_t partial_size(const op::MixNormBackward& f) {
    return 2 * f.s.cols() + 2;
}

template <class Real>
void backward_rows(const op::MixNormBackward& f, cpu::Range rows, float* partial) {
    const int64_t cols = f.s.cols();
    const float inverse = 1.0f / static_cast<float>(cols);
    const float* gain = optional(f.gain);
    const bool parameters = has_parameters(f), mixed = f.dz.present();
    float* gain_sums = partial;
    float* bias_sums = parameters ? gain_sums + cols : nullptr;
    if (parameters) std::fill(gain_sums, gain_sums + 2 * cols, 0.0f);
    const float cx = mixed ? f.mix.coefficients.as<float>()[0] : 0.0f;
    const float cz = mixed ? f.mix.coefficients.as<float>()[1] : 0.0f;
    Vec sum_entered{}, sum_z{};
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
            if (parameters) {
                cpu::store(gain_sums + i, cpu::load(gain_sums + i, width) + d * normed, width);
                cpu::store(bias_sums + i, cpu::load(bias_sums + i, width) + d, width);
            }
        });
        const float dot = cpu::sum(dots) * inverse;
        const float average = f.kind == NormKind::layernorm ? cpu::sum(sums) * inverse : 0.0f;
        const Real* residual = row_of<Real>(f.dresidual, t);
        const Real* entered = row_of<Real>(f.entered, t);
        const Real* z = row_of<Real>(f.mix.z, t);
        Real* dz = row_of<Real>(f.dz, t);
        Real* out = row_of<Real>(f.dx, t);
        cpu::for_vectors(cols, [&](int64_t i, auto width) {
            const Vec normed = (cpu::load(in + i, width) - center) * r;
            const Vec d = cpu::load(upstream + i, width);
            const Vec dn = gain ? d * cpu::load(gain + i, width) : d;
            Vec result = r * (dn - average - normed * dot);
            if (residual) result += cpu::load(residual + i, width);
            if (dz) {
                result = cpu::rounded_to<Real>(result);
                sum_entered = fma(result, cpu::load(entered + i, width), sum_entered);  // past the end: · 0
                sum_z = fma(result, cpu::load(z + i, width), sum_z);
                cpu::store(dz + i, f.accumulate_z ? cz * result + cpu::load(dz + i, width) : cz * result,
                           width);
                result *= cx;
            }
            cpu::store(out + i, result, width);
        });
    }
    if (mixed) {
        partial[2 * cols] = cpu::sum(sum_entered);
        partial[2 * cols + 1] = cpu::sum(sum_z);
    }
}

void run(const op::MixNormBackward& f, float* partial) {
    const int64_t cols = f.s.cols(), stride = partial_size(f);
    cpu::with_real(f.s.dtype, [&]<class Real>() {
        cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
            backward_rows<Real>(f, cpu::chunk_of(f.s.rows(), chunk, cpu::kReductionChunks),
                                partial ? partial + chunk * stride : nullptr);
        });
    });
    if (!partial) return;
    for (const auto& [out, at] :
         {std::pair{f.dgain, int64_t{0}}, {f.dbias, cols}, {f.dcoefficients, 2 * cols}}) {
        if (out.present()) cpu::add_chunks(out.as<float>(), partial + at, stride, out.cols(), f.accumulate);
    }
}

}  // namespace

void CpuOps::enqueue(const op::NormForward& a, Stream& stream) {
    const op::MixNormForward f{.y = a.y,
                               .sum = {},
                               .entered = a.sum,
                               .mean = a.mean,
                               .rstd = a.rstd,
                               .x = a.x,
                               .delta = a.delta,
                               .mix = {},
                               .gain = a.gain,
                               .bias = a.bias,
                               .kind = a.kind,
                               .epsilon = a.epsilon};
    cpu::submit(stream, "norm_forward", [f] { run(f); });
}

void CpuOps::enqueue(const op::MixNormForward& a, Stream& stream) {
    cpu::submit(stream, "mix_norm_forward", [a] { run(a); });
}

void CpuOps::enqueue(const op::NormBackward& a, Stream& stream) {
    const op::MixNormBackward f{.dx = a.ds,
                                .dz = {},
                                .dcoefficients = {},
                                .dgain = a.dgain,
                                .dbias = a.dbias,
                                .dy = a.dy,
                                .s = a.s,
                                .entered = {},
                                .mix = {},
                                .mean = a.mean,
                                .rstd = a.rstd,
                                .gain = a.gain,
                                .dresidual = a.dresidual,
                                .accumulate = a.accumulate,
                                .accumulate_z = false,
                                .kind = a.kind};
    float* partial = nullptr;
    if (has_parameters(f))
        partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * partial_size(f) * 4));
    cpu::submit(stream, "norm_backward", [=] { run(f, partial); });
}

void CpuOps::enqueue(const op::MixNormBackward& a, Stream& stream) {
    auto* partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * partial_size(a) * 4));
    cpu::submit(stream, "mix_norm_backward", [=] { run(a, partial); });
}

}  // namespace speedrun
