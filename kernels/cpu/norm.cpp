#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

using cpu::Vec;

const float* optional(Tensor tensor) {
    return tensor.present() ? tensor.as<float>() : nullptr;
}

}  // namespace

void CpuOps::norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta, Tensor gain,
                          Tensor bias, NormKind kind, Stream& stream) {
    const int64_t rows = x.rows(), cols = x.cols();
    check_norm_forward(y, sum, mean, rstd, x, delta, gain, bias, kind);
    cpu::submit(stream, "norm_forward", [=] {
        const float* g = optional(gain);
        const float* b = optional(bias);
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                const Real* in = x.as<Real>() + t * x.row_stride;
                if (delta.present()) {
                    const Real* added = delta.as<Real>() + t * delta.row_stride;
                    Real* total = sum.as<Real>() + t * sum.row_stride;
                    cpu::for_vectors(cols, [&](int64_t i, auto width) {
                        cpu::store(total + i, cpu::load(in + i, width) + cpu::load(added + i, width), width);
                    });
                    in = total;  // the rounded sum is what backward will see, so norm that
                }
                float center = 0.0f;
                if (kind == NormKind::layernorm) {
                    Vec sums{};
                    cpu::for_vectors(cols, [&](int64_t i, auto width) { sums += cpu::load(in + i, width); });
                    center = cpu::sum(sums) / static_cast<float>(cols);
                    mean.as<float>()[t] = center;
                }
                Vec squares{};
                cpu::for_vectors(cols, [&](int64_t i, auto width) {
                    const Vec v = cpu::keep(cpu::load(in + i, width) - center, width);
                    squares += v * v;
                });
                const float r = 1.0f / std::sqrt(cpu::sum(squares) / static_cast<float>(cols) + kNormEpsilon);
                rstd.as<float>()[t] = r;
                Real* out = y.as<Real>() + t * y.row_stride;
                cpu::for_vectors(cols, [&](int64_t i, auto width) {
                    Vec v = (cpu::load(in + i, width) - center) * r;
                    if (g) v *= cpu::load(g + i, width);
                    if (b) v += cpu::load(b + i, width);
                    cpu::store(out + i, v, width);
                });
            });
        });
    });
}

void CpuOps::norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean,
                           Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate, NormKind kind,
                           Stream& stream) {
    const int64_t rows = s.rows(), cols = s.cols();
    check_norm_backward(ds, dgain, dbias, dy, s, mean, rstd, gain, dresidual, kind);
    const bool parameters = dgain.present() || dbias.present();
    float* partial = nullptr;
    if (parameters)
        partial = static_cast<float*>(workspace(stream, cpu::kReductionChunks * 2 * cols * sizeof(float)));

    cpu::submit(stream, "norm_backward", [=] {
        const float* g = optional(gain);
        const float inverse = 1.0f / static_cast<float>(cols);
        cpu::with_real(s.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                float* gain_sums = parameters ? partial + chunk * 2 * cols : nullptr;
                float* bias_sums = parameters ? gain_sums + cols : nullptr;
                if (parameters) std::fill(gain_sums, gain_sums + 2 * cols, 0.0f);
                const auto [begin, end] = cpu::chunk_of(rows, chunk, cpu::kReductionChunks);
                for (int64_t t = begin; t < end; ++t) {
                    const Real* in = s.as<Real>() + t * s.row_stride;
                    const Real* upstream = dy.as<Real>() + t * dy.row_stride;
                    const float center = kind == NormKind::layernorm ? mean.as<float>()[t] : 0.0f;
                    const float r = rstd.as<float>()[t];
                    Vec dots{}, sums{};  // Σ ĝ·ŝ and Σ ĝ, with ĝ = dy·gain
                    cpu::for_vectors(cols, [&](int64_t i, auto width) {
                        const Vec normed = (cpu::load(in + i, width) - center) * r;
                        const Vec d = cpu::load(upstream + i, width);
                        const Vec dn = g ? d * cpu::load(g + i, width) : d;
                        dots += dn * normed;
                        sums += dn;
                        if (parameters) {
                            cpu::store(gain_sums + i, cpu::load(gain_sums + i, width) + d * normed, width);
                            cpu::store(bias_sums + i, cpu::load(bias_sums + i, width) + d, width);
                        }
                    });
                    const float dot = cpu::sum(dots) * inverse;
                    const float average = kind == NormKind::layernorm ? cpu::sum(sums) * inverse : 0.0f;
                    const Real* residual =
                        dresidual.present() ? dresidual.as<Real>() + t * dresidual.row_stride : nullptr;
                    Real* out = ds.as<Real>() + t * ds.row_stride;
                    cpu::for_vectors(cols, [&](int64_t i, auto width) {
                        const Vec normed = (cpu::load(in + i, width) - center) * r;
                        const Vec d = cpu::load(upstream + i, width);
                        const Vec dn = g ? d * cpu::load(g + i, width) : d;
                        Vec result = r * (dn - average - normed * dot);
                        if (residual) result += cpu::load(residual + i, width);
                        cpu::store(out + i, result, width);
                    });
                }
            });
        });
        for (int64_t i = 0; parameters && i < cols; ++i) {
            float gain_total = 0.0f, bias_total = 0.0f;
            for (int64_t chunk = 0; chunk < cpu::kReductionChunks; ++chunk) {
                gain_total += partial[chunk * 2 * cols + i];
                bias_total += partial[chunk * 2 * cols + cols + i];
            }
            if (dgain.present())
                dgain.as<float>()[i] = gain_total + (accumulate ? dgain.as<float>()[i] : 0.0f);
            if (dbias.present())
                dbias.as<float>()[i] = bias_total + (accumulate ? dbias.as<float>()[i] : 0.0f);
        }
    });
}

}  // namespace speedrun
