#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/op_checks.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::adamw_step(Tensor parameter, Tensor master, Tensor first_moment, Tensor second_moment,
                        Tensor grad, Tensor grad_scale, const AdamwOptions& options, Stream& stream) {
    const int64_t count = master.numel();
    check_adamw_step(parameter, master, first_moment, second_moment, grad, grad_scale);
    cpu::submit(stream, "adamw_step", [=] {
        const float factor = *grad_scale.as<float>();
        if (!std::isfinite(factor)) return;
        const double step = static_cast<double>(options.step);
        const auto correction1 = static_cast<float>(1.0 / (1.0 - std::pow(double{options.beta1}, step)));
        const auto correction2 = static_cast<float>(1.0 / (1.0 - std::pow(double{options.beta2}, step)));
        const float shrink = 1.0f - options.learning_rate * options.weight_decay;
        const float rate = options.learning_rate * correction1;
        const bool separate = parameter.data != master.data;
        cpu::with_real(parameter.dtype, [&]<class Real>() {
            cpu::for_blocks(count, [&](int64_t begin, int64_t size) {
                float* w = master.as<float>() + begin;
                float* m = first_moment.as<float>() + begin;
                float* v = second_moment.as<float>() + begin;
                const float* g = grad.as<float>() + begin;
                Real* p = parameter.as<Real>() + begin;
                cpu::for_vectors(size, [&](int64_t i, auto width) {
                    const Vec gi = factor * cpu::load(g + i, width);
                    const Vec mi = options.beta1 * cpu::load(m + i, width) + (1.0f - options.beta1) * gi;
                    const Vec vi = options.beta2 * cpu::load(v + i, width) + (1.0f - options.beta2) * gi * gi;
                    const Vec denominator = square_root(vi * correction2) + options.epsilon;
                    const Vec wi = shrink * cpu::load(w + i, width) - rate * mi / denominator;
                    cpu::store(m + i, mi, width);
                    cpu::store(v + i, vi, width);
                    cpu::store(w + i, wi, width);
                    if (separate) cpu::store(p + i, wi, width);
                });
            });
        });
    });
}

}  // namespace speedrun
