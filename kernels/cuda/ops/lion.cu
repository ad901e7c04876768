// Lion on f32 master weights with a copy in the compute type. Roofline bound: 20·n bytes (master and momentum
// read and written, gradient read) + n times the copy's size. Legend: n elements; W per thread.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace lion_cu {
namespace {

template <class Real>
struct Lion {
    Real* parameter;  // null: the master is the parameter
    float *master, *momentum;
    const float *grad, *grad_scale;
    float beta1, beta2, shrink, rate;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        const float factor = *grad_scale;
        if (!is_finite(factor)) return;
        Vector<W> w = chunk.load(master + col), m = chunk.load(momentum + col);
        const Vector<W> g = chunk.load(grad + col);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float gi = factor * g[i], u = beta1 * m[i] + (1.0f - beta1) * gi;
            const float sign = u > 0.0f ? 1.0f : u < 0.0f ? -1.0f : u;  // ±0 and NaN are kept
            w[i] = shrink * w[i] - rate * sign;
            m[i] = beta2 * m[i] + (1.0f - beta2) * gi;
        }
        chunk.store(momentum + col, m);
        chunk.store(master + col, w);
        if (parameter) chunk.store(parameter + col, w);
    }
};

}  // namespace
}  // namespace lion_cu

void CudaOps::enqueue(const op::LionStep& a, Stream& stream) {
    using namespace lion_cu;
    cuda::with_real(a.parameter.dtype, [&]<class Real>() {
        const Lion<Real> body{a.parameter.data == a.master.data ? nullptr : a.parameter.as<Real>(),
                              a.master.as<float>(),
                              a.momentum.as<float>(),
                              a.grad.as<float>(),
                              a.grad_scale.as<float>(),
                              a.beta1,
                              a.beta2,
                              1.0f - a.learning_rate * a.weight_decay,
                              a.learning_rate};
        const bool aligned = aligned_rows(4, {a.parameter, a.master, a.momentum, a.grad});
        cuda::with_width<float>(aligned, [&]<int W>() { map<W>({1, a.master.numel()}, body, stream); });
    });
}

}  // namespace speedrun
