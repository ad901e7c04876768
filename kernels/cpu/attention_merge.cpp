#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::enqueue(const op::MergeAttention& a, Stream& stream) {
    cpu::submit(stream, "merge_attention", [=] {
        const int64_t rows = a.o.rows(), heads = a.lse.rows(), dim = a.o.cols() / heads;
        const bool begun = a.lse_before.present();
        constexpr float kNothing = -std::numeric_limits<float>::infinity();
        cpu::with_real(a.o.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at = h * rows + t;
                    const float before = begun ? a.lse_before.as<float>()[at] : kNothing,
                                added = a.lse_of_o.as<float>()[at], top = std::max(before, added);
                    const float relative =
                        top == kNothing ? 0.0f : top;  // no key at all: both exponentials are 0
                    const Vec weights[] = {exp(Vec(before - relative)), exp(Vec(added - relative))},
                              total = weights[0] + weights[1];
                    float lanes[cpu::kLanes];
                    cpu::store(lanes, total);
                    a.lse.as<float>()[at] = relative + std::log(lanes[0]);
                    const Vec scale = lanes[0] == 0.0f ? Vec{} : 1.0f / total;
                    float* sum = a.sum.as<float>() + t * a.sum.row_stride + h * dim;
                    const Real* o = a.o.as<Real>() + t * a.o.row_stride + h * dim;
                    cpu::for_vectors(dim, [&](int64_t i, auto width) {
                        const Vec x = scale * weights[1] * cpu::load(o + i, width);
                        cpu::store(sum + i, begun ? fma(scale * weights[0], cpu::load(sum + i, width), x) : x,
                                   width);
                    });
                }
            });
        });
    });
}

}  // namespace speedrun
