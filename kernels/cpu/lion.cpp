#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

Vec sign(Vec x) {  // ±0 and NaN are returned unchanged
    return select(x > 0.0f, 1.0f, select(x < 0.0f, -1.0f, x));
}

}  // namespace

void CpuOps::enqueue(const op::LionStep& a, Stream& stream) {
    cpu::submit(stream, "lion_step", [=] {
        const float factor = *a.grad_scale.as<float>();
        if (!std::isfinite(factor)) return;
        const float shrink = 1.0f - a.learning_rate * a.weight_decay, rate = a.learning_rate;
        const float beta1 = a.beta1, beta2 = a.beta2;
        const bool separate = a.parameter.data != a.master.data;
        cpu::with_real(a.parameter.dtype, [&]<class Real>() {
            cpu::for_blocks(a.master.numel(), [&](int64_t begin, int64_t size) {
                float* w = a.master.as<float>() + begin;
                float* m = a.momentum.as<float>() + begin;
                const float* g = a.grad.as<float>() + begin;
                Real* p = a.parameter.as<Real>() + begin;
                cpu::for_vectors(size, [&](int64_t i, auto width) {
                    const Vec gi = factor * cpu::load(g + i, width), mi = cpu::load(m + i, width);
                    const Vec direction = sign(beta1 * mi + (1.0f - beta1) * gi);
                    const Vec wi = shrink * cpu::load(w + i, width) - rate * direction;
                    cpu::store(m + i, beta2 * mi + (1.0f - beta2) * gi, width);
                    cpu::store(w + i, wi, width);
                    if (separate) cpu::store(p + i, wi, width);
                });
            });
        });
    });
}

}  // namespace speedrun
