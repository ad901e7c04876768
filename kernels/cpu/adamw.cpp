#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::enqueue(const op::AdamwStep& a, Stream& stream) {
    const int64_t count = a.master.numel();
    cpu::submit(stream, "adamw_step", [=] {
        const float factor = *a.grad_scale.as<float>();
        if (!std::isfinite(factor)) return;
        const float* const rates = a.rates.as<float>();
        const float shrink = rates[0], rate = rates[1], correction2 = rates[2], least = a.min_product();
        const bool separate = a.parameter.data != a.master.data;
        with_weights(a.master, a.parameter, [&]<class Master, class Real>() {
            cpu::with_real(a.first_moment.dtype, [&]<class Moment>() {
                cpu::for_blocks(count, [&](int64_t begin, int64_t size) {
                    Master* w = a.master.as<Master>() + begin;
                    Moment* m = a.first_moment.as<Moment>() + begin;
                    Moment* v = a.second_moment.as<Moment>() + begin;
                    const float* g = a.grad.as<float>() + begin;
                    Real* p = a.parameter.as<Real>() + begin;
                    cpu::for_vectors(size, [&](int64_t i, auto width) {
                        const Vec gi = factor * cpu::load(g + i, width);
                        const Vec mi = a.beta1 * cpu::load(m + i, width) + (1.0f - a.beta1) * gi;
                        const Vec vi = a.beta2 * cpu::load(v + i, width) + (1.0f - a.beta2) * gi * gi;
                        const Vec denominator = square_root(vi * correction2) + a.epsilon;
                        const Vec moved = rate * mi / denominator, before = cpu::load(w + i, width);
                        const Vec decayed = shrink * before;
                        const Vec kept =
                            a.cautious ? select(moved * before >= least, decayed, before) : decayed;
                        const Vec wi = kept - moved;
                        cpu::store(m + i, mi, width);
                        cpu::store(v + i, vi, width);
                        cpu::store(w + i, wi, width);
                        if (separate) cpu::store(p + i, wi, width);
                    });
                });
            });
        });
    });
}

}  // namespace speedrun
