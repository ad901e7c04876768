// Pointwise parts of Muon: momentum before the orthogonalization, its initial division, and the update after
// it. The matmuls are in matmul.cu.
// Roofline bound: momentum 12·n bytes + the update written; apply 8·n bytes + the update read + the copy
// written. The division reads and writes its matrices and reads them once more for their norms (from L2 if
// they fit). Legend: n elements · W per thread · R rows, C columns of a matrix.
#include "kernels/cuda/blocks/pieces.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

namespace muon_cu {
namespace {

template <class Real>
struct MomentumPiece {
    Real* update;
    float* momentum;
    const float* grad;
    int64_t count;
};

template <class Real>
struct Momentum {
    using Piece = MomentumPiece<Real>;
    const float *grad_scale, *momentum;
    bool nesterov;

    template <int W>
    __device__ __forceinline__ void operator()(const Piece& piece, int64_t col, Chunk<W> chunk) const {
        const float factor = *grad_scale, mu = *momentum;
        Vector<W> u;
        if (is_finite(factor)) {
            Vector<W> b = chunk.load(piece.momentum + col);
            const Vector<W> g = chunk.load(piece.grad + col);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const float fresh = (1.0f - mu) * factor * g[i];
                b[i] = mu * b[i] + fresh;
                u[i] = nesterov ? fresh + mu * b[i] : b[i];
            }
            chunk.store(piece.momentum + col, b);
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) u[i] = 0.0f;
        }
        chunk.store(piece.update + col, u);
    }
};

template <class Master, class Real, class Update>
struct ApplyPiece {
    Real* parameter;  // null: the master is the parameter
    Master* master;
    const Update* update;
    const float* rates;
    int64_t count;
};

template <class Master, class Real, class Update>
struct Apply {
    using Piece = ApplyPiece<Master, Real, Update>;
    const float* grad_scale;
    bool cautious;

    template <int W>
    __device__ __forceinline__ void operator()(const Piece& piece, int64_t col, Chunk<W> chunk) const {
        if (!is_finite(*grad_scale)) return;
        const float rate = piece.rates[0], decay = piece.rates[1];
        Vector<W> w = chunk.load(piece.master + col);
        const Vector<W> u = chunk.load(piece.update + col);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float shrink = !cautious || u[i] * w[i] >= 0.0f ? decay * w[i] : 0.0f;
            w[i] = w[i] - rate * u[i] - shrink;
        }
        chunk.store(piece.master + col, w);
        if (piece.parameter) chunk.store(piece.parameter + col, w);
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
    divide_by_norm_kernel(Real* out, const Real* x, const float* partial, int64_t count, float epsilon) {
    wait_for_prior_kernels();
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < gridDim.x; i += sizes::kReduceThreads)
        sum += partial[int64_t{blockIdx.y} * gridDim.x + i];
    const float factor = 1.0f / (1.02f * sqrtf(block_sum(sum)) + epsilon);
    const int64_t first = int64_t{blockIdx.y} * count,
                  stride = int64_t{gridDim.x} * sizes::kReduceThreads * W;
    for (int64_t i = (int64_t{blockIdx.x} * sizes::kReduceThreads + threadIdx.x) * W; i < count;
         i += stride) {
        const Chunk<W> chunk{count - i < W ? static_cast<int>(count - i) : W};
        Vector<W> v = chunk.load(x + first + i);
#pragma unroll
        for (int j = 0; j < W; ++j) v[j] *= factor;
        chunk.store(out + first + i, v);
    }
}

}  // namespace
}  // namespace muon_cu

void CudaOps::enqueue(const op::MuonMomentum& a, Stream& stream) {
    using namespace muon_cu;
    if (a.pieces.empty()) return;
    cuda::with_real(a.pieces.front().update.dtype, [&]<class Real>() {
        std::vector<MomentumPiece<Real>> pieces;
        bool aligned = true;
        for (const op::MuonMomentum::Piece& piece : a.pieces) {
            pieces.push_back({piece.update.as<Real>(), piece.momentum.as<float>(), piece.grad.as<float>(),
                              piece.momentum.numel()});
            aligned = aligned && aligned_rows(4, {piece.update, piece.momentum, piece.grad});
        }
        const Momentum<Real> body{a.grad_scale.as<float>(), a.mu.as<float>(), a.nesterov};
        cuda::with_width<float>(aligned, [&]<int W>() { map_pieces<W>(pieces, body, stream); });
    });
}

void CudaOps::enqueue(const op::MuonApply& a, Stream& stream) {
    using namespace muon_cu;
    if (a.pieces.empty()) return;
    const op::MuonApply::Piece& first = a.pieces.front();
    cuda::with_real(first.update.dtype, [&]<class Update>() {
        with_weights(first.master, first.parameter, [&]<class Master, class Real>() {
            std::vector<ApplyPiece<Master, Real, Update>> pieces;
            bool aligned = true;
            for (const op::MuonApply::Piece& piece : a.pieces) {
                pieces.push_back(
                    {piece.parameter.data == piece.master.data ? nullptr : piece.parameter.as<Real>(),
                     piece.master.as<Master>(), piece.update.as<Update>(), piece.rates.as<float>(),
                     piece.master.numel()});
                aligned = aligned && aligned_rows(4, {piece.parameter, piece.master, piece.update});
            }
            const Apply<Master, Real, Update> body{a.grad_scale.as<float>(), a.cautious};
            cuda::with_width<float>(aligned, [&]<int W>() { map_pieces<W>(pieces, body, stream); });
        });
    });
}

void CudaOps::polar_normalize(Tensor out, Tensor x, float epsilon, Stream& stream) {
    using namespace muon_cu;
    const int64_t matrices = x.shape[0], count = x.shape[1] * x.shape[2];
    if (x.numel() == 0) return;
    const int64_t blocks = reduce_blocks(count);
    auto* const partial = static_cast<float*>(workspace(stream, matrices * blocks * int64_t{sizeof(float)}));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(matrices));
    cuda::with_real(x.dtype, [&]<class Real>() {
        const bool aligned = aligned_rows(kVectorWidth<Real>, {out, x}) && count % kVectorWidth<Real> == 0;
        cuda::with_width<Real>(aligned, [&]<int W>() {
            launch(squares_kernel<W, Real>, grid, sizes::kReduceThreads, kReduceSharedBytes, stream, partial,
                   x.as<Real>(), count);
            launch(divide_by_norm_kernel<W, Real>, grid, sizes::kReduceThreads, kReduceSharedBytes, stream,
                   out.as<Real>(), x.as<Real>(), partial, count, epsilon);
        });
    });
}

}  // namespace speedrun
