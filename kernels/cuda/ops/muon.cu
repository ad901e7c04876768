// Pointwise parts of Muon: momentum before the orthogonalization, its initial division, and the update after
// it. The matmuls are in matmul.cu.
// Roofline bound: momentum 12·n bytes + the update written; apply 8·n bytes + the update read + the copy
// written. The division reads and writes its matrices and reads them once more for their norms (from L2 if
// they fit). Legend: n elements · W per thread · R rows, C columns of a matrix.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

namespace muon_cu {
namespace {

template <class Real>
struct Momentum {
    Real* update;
    float* momentum;
    const float *grad, *grad_scale;
    float mu;
    bool nesterov;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        const float factor = *grad_scale;
        Vector<W> u;
        if (is_finite(factor)) {
            Vector<W> b = chunk.load(momentum + col);
            const Vector<W> g = chunk.load(grad + col);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const float fresh = (1.0f - mu) * factor * g[i];
                b[i] = mu * b[i] + fresh;
                u[i] = nesterov ? fresh + mu * b[i] : b[i];
            }
            chunk.store(momentum + col, b);
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) u[i] = 0.0f;
        }
        chunk.store(update + col, u);
    }
};

template <class Master, class Real, class Update>
struct Apply {
    Real* parameter;  // null: the master is the parameter
    Master* master;
    const Update* update;
    const float* grad_scale;
    float rate, decay;
    bool cautious;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        if (!is_finite(*grad_scale)) return;
        Vector<W> w = chunk.load(master + col);
        const Vector<W> u = chunk.load(update + col);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float shrink = !cautious || u[i] * w[i] >= 0.0f ? decay * w[i] : 0.0f;
            w[i] = w[i] - rate * u[i] - shrink;
        }
        chunk.store(master + col, w);
        if (parameter) chunk.store(parameter + col, w);
    }
};

// partial[matrix][block] = Σ squares of the block's range; grid.y is the matrix.
template <int W, class Real>
__global__ void __launch_bounds__(sizes::kReduceThreads)
    squares_kernel(float* partial, const Real* x, int64_t count) {
    wait_for_prior_kernels();
    const Real* const matrix = x + int64_t{blockIdx.y} * count;
    const int64_t stride = int64_t{gridDim.x} * sizes::kReduceThreads * W;
    float sum = 0.0f;
    for (int64_t i = (int64_t{blockIdx.x} * sizes::kReduceThreads + threadIdx.x) * W; i < count;
         i += stride) {
        const Vector<W> v = Chunk<W>{count - i < W ? static_cast<int>(count - i) : W}.load(matrix + i);
#pragma unroll
        for (int j = 0; j < W; ++j) sum += v[j] * v[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = sum;
}

// Every block adds the same partial sums in the same order, then divides its range.
template <int W, class Real>
__global__ void __launch_bounds__(sizes::kReduceThreads)
    divide_by_norm_kernel(Real* x, const float* partial, int64_t count, float epsilon) {
    wait_for_prior_kernels();
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < gridDim.x; i += sizes::kReduceThreads)
        sum += partial[int64_t{blockIdx.y} * gridDim.x + i];
    const float factor = 1.0f / (1.02f * sqrtf(block_sum(sum)) + epsilon);
    Real* const matrix = x + int64_t{blockIdx.y} * count;
    const int64_t stride = int64_t{gridDim.x} * sizes::kReduceThreads * W;
    for (int64_t i = (int64_t{blockIdx.x} * sizes::kReduceThreads + threadIdx.x) * W; i < count;
         i += stride) {
        const Chunk<W> chunk{count - i < W ? static_cast<int>(count - i) : W};
        Vector<W> v = chunk.load(matrix + i);
#pragma unroll
        for (int j = 0; j < W; ++j) v[j] *= factor;
        chunk.store(matrix + i, v);
    }
}

}  // namespace
}  // namespace muon_cu

void CudaOps::enqueue(const op::MuonMomentum& a, Stream& stream) {
    using namespace muon_cu;
    const int64_t count = a.momentum.numel();
    cuda::with_real(a.update.dtype, [&]<class Real>() {
        const Momentum<Real> body{
            a.update.as<Real>(), a.momentum.as<float>(), a.grad.as<float>(), a.grad_scale.as<float>(), a.mu,
            a.nesterov};
        cuda::with_width<float>(aligned_rows(4, {a.update, a.momentum, a.grad}), [&]<int W>() {
            map<W>({1, count}, body, stream);
        });
    });
}

void CudaOps::enqueue(const op::MuonApply& a, Stream& stream) {
    using namespace muon_cu;
    const int64_t count = a.master.numel();
    cuda::with_real(a.update.dtype, [&]<class Update>() {
        with_weights(a.master, a.parameter, [&]<class Master, class Real>() {
            const Apply<Master, Real, Update> body{
                a.parameter.data == a.master.data ? nullptr : a.parameter.as<Real>(),
                a.master.as<Master>(),
                a.update.as<Update>(),
                a.grad_scale.as<float>(),
                a.learning_rate,
                a.learning_rate * a.weight_decay,
                a.cautious};
            cuda::with_width<float>(aligned_rows(4, {a.parameter, a.master, a.update}), [&]<int W>() {
                map<W>({1, count}, body, stream);
            });
        });
    });
}

void CudaOps::polar_normalize(Tensor x, float epsilon, Stream& stream) {
    using namespace muon_cu;
    const int64_t matrices = x.shape[0], count = x.shape[1] * x.shape[2];
    if (x.numel() == 0) return;
    const int64_t blocks = reduce_blocks(count);
    auto* const partial = static_cast<float*>(workspace(stream, matrices * blocks * int64_t{sizeof(float)}));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(matrices));
    cuda::with_real(x.dtype, [&]<class Real>() {
        const bool aligned = aligned_rows(kVectorWidth<Real>, {x}) && count % kVectorWidth<Real> == 0;
        cuda::with_width<Real>(aligned, [&]<int W>() {
            launch(squares_kernel<W, Real>, grid, sizes::kReduceThreads, kReduceSharedBytes, stream, partial,
                   x.as<Real>(), count);
            launch(divide_by_norm_kernel<W, Real>, grid, sizes::kReduceThreads, kReduceSharedBytes, stream,
                   x.as<Real>(), partial, count, epsilon);
        });
    });
}

}  // namespace speedrun
