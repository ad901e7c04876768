// AdamW on f32 master weights with a copy in the compute type, or on bf16 weights alone; moments in f32 or
// bf16.
// Roofline bound: 28·n bytes (master and both moments read and written, gradient read) + n times the copy's
// size. 8·n fewer with bf16 moments, 4·n fewer with a bf16 master. Legend: n elements; W per thread.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

namespace adamw_cu {
namespace {

template <class Master, class Real, class Moment>
struct Step {
    Real* parameter;  // null: the master is the parameter
    Master* master;
    Moment *first_moment, *second_moment;
    const float *grad, *grad_scale, *rates;
    float beta1, beta2, epsilon;
    float least;  // minimum of step·weight for decay; -infinity: decay all

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        const float factor = *grad_scale;
        if (!is_finite(factor)) return;
        const float shrink = rates[0], rate = rates[1], correction2 = rates[2];
        Vector<W> w = chunk.load(master + col), m = chunk.load(first_moment + col),
                  v = chunk.load(second_moment + col);
        const Vector<W> g = chunk.load(grad + col);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float gi = factor * g[i];
            m[i] = beta1 * m[i] + (1.0f - beta1) * gi;
            v[i] = beta2 * v[i] + (1.0f - beta2) * gi * gi;
            const float moved = rate * m[i] / (sqrtf(v[i] * correction2) + epsilon);
            const float kept = moved * w[i] >= least ? shrink * w[i] : w[i];
            w[i] = kept - moved;
        }
        chunk.store(first_moment + col, m);
        chunk.store(second_moment + col, v);
        chunk.store(master + col, w);
        if (parameter) chunk.store(parameter + col, w);
    }
};

}  // namespace
}  // namespace adamw_cu

void CudaOps::enqueue(const op::AdamwStep& a, Stream& stream) {
    using namespace adamw_cu;
    const int64_t count = a.master.numel();
    with_weights(a.master, a.parameter, [&]<class Master, class Real>() {
        cuda::with_real(a.first_moment.dtype, [&]<class Moment>() {
            const Step<Master, Real, Moment> body{
                a.parameter.data == a.master.data ? nullptr : a.parameter.as<Real>(),
                a.master.as<Master>(),
                a.first_moment.as<Moment>(),
                a.second_moment.as<Moment>(),
                a.grad.as<float>(),
                a.grad_scale.as<float>(),
                a.rates.as<float>(),
                a.beta1,
                a.beta2,
                a.epsilon,
                a.min_product()};
            const bool aligned =
                aligned_rows(4, {a.parameter, a.master, a.first_moment, a.second_moment, a.grad});
            cuda::with_width<float>(aligned, [&]<int W>() { map<W>({1, count}, body, stream); });
        });
    });
}

}  // namespace speedrun
