// Fill, scale, cast, sums, maxima and counts, the clipping coefficient; column sums (gradients
// of biases). Roofline bound, real of b bytes: fill n·b; scale 2·n·b; cast the sum of both sizes; reductions
// and column sums n·b read. Legend: n elements · T rows, C columns · W elements per thread.
#include <cmath>
#include <limits>

#include "kernels/cuda/blocks/pieces.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace utilities_cu {
namespace {

template <class Real>
struct Fill {
    Real* x;
    float value;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        Vector<W> v;
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] = value;
        chunk.store(x + col, v);
    }
};

template <class Real>
struct Scale {
    Real* x;
    float factor;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        Vector<W> v = chunk.load(x + col);
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] *= factor;
        chunk.store(x + col, v);
    }
};

template <class To, class From>
struct Cast {
    To* out;
    const From* in;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk) const {
        chunk.store(out + col, chunk.load(in + col));
    }
};

struct Itself {
    __device__ __forceinline__ float operator()(float x) const { return x; }
};
struct Nonfinite {
    __device__ __forceinline__ float operator()(float x) const { return is_finite(x) ? 0.0f : 1.0f; }
};

template <class Real, class Term>
struct Sum {
    const Real* x;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t, int64_t col, Chunk<W> chunk, float (&sums)[1]) const {
        const Vector<W> v = chunk.load(x + col);
#pragma unroll
        for (int i = 0; i < W; ++i) sums[0] += i < chunk.count ? Term()(v[i]) : 0.0f;
    }
};

template <class Term>
void reduce_tensor(Tensor out, Tensor x, bool accumulate, void* partial, LaunchSite site) {
    cuda::with_real(x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {x}), [&]<int W>() {
            reduce<W, 1>(out.as<float>(), static_cast<float*>(partial), {1, x.numel()}, accumulate,
                         Sum<Real, Term>{x.as<Real>()}, site);
        });
    });
}

template <class Real>
struct NormPiece {
    const Real* x;
    float* out;
    int64_t count;
};

// partial[block] = Σ of the terms of the block's elements, or the largest magnitude.
template <int W, class Real, VectorNorm kNorm>
__global__ void __launch_bounds__(sizes::kReduceThreads)
    norm_terms_kernel(float* partial, const __grid_constant__ PieceTable<NormPiece<Real>> table) {
    wait_for_prior_kernels();
    const int index = table.index();
    const NormPiece<Real>& piece = table.pieces[index];
    const unsigned begin = table.begin(index), blocks = table.ends[index] - begin;
    const int64_t stride = int64_t{blocks} * sizes::kReduceThreads * W;
    float sum = 0.0f;
    uint32_t largest = 0;
    for (int64_t i = (int64_t{blockIdx.x - begin} * sizes::kReduceThreads + threadIdx.x) * W; i < piece.count;
         i += stride) {
        const Chunk<W> chunk{piece.count - i < W ? static_cast<int>(piece.count - i) : W};
        const Vector<W> v = chunk.load(piece.x + i);
#pragma unroll
        for (int k = 0; k < W; ++k) {
            const float x = k < chunk.count ? v[k] : 0.0f;
            if constexpr (kNorm == VectorNorm::one) sum += fabsf(x);
            if constexpr (kNorm == VectorNorm::two) sum += x * x;
            if constexpr (kNorm == VectorNorm::three) sum += fabsf(x) * (x * x);
            if constexpr (kNorm == VectorNorm::infinity) largest = larger(largest, magnitude_bits(x));
        }
    }
    const float result = kNorm == VectorNorm::infinity ? __uint_as_float(block_max(largest)) : block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = result;
}

// One block per piece reduces the piece's partial results in their order.
template <class Real, VectorNorm kNorm>
__global__ void __launch_bounds__(sizes::kReduceThreads)
    finish_norm_terms_kernel(const float* partial,
                             const __grid_constant__ PieceTable<NormPiece<Real>> table) {
    wait_for_prior_kernels();
    const int index = static_cast<int>(blockIdx.x);
    float sum = 0.0f;
    uint32_t largest = 0;
    for (unsigned i = table.begin(index) + threadIdx.x; i < table.ends[index]; i += sizes::kReduceThreads) {
        if constexpr (kNorm == VectorNorm::infinity) {
            largest = larger(largest, magnitude_bits(partial[i]));
        } else {
            sum += partial[i];
        }
    }
    const float result = kNorm == VectorNorm::infinity ? __uint_as_float(block_max(largest)) : block_sum(sum);
    if (threadIdx.x == 0) *table.pieces[index].out = result;
}

template <class Real, VectorNorm kNorm>
void launch_norm_terms(const PieceTable<NormPiece<Real>>& table, bool aligned, float* partial,
                       LaunchSite site) {
    cuda::with_width<Real>(aligned, [&]<int W>() {
        launch(norm_terms_kernel<W, Real, kNorm>, table.ends[table.size - 1], sizes::kReduceThreads,
               kReduceSharedBytes, site, partial, table);
    });
    launch(finish_norm_terms_kernel<Real, kNorm>, static_cast<unsigned>(table.size), sizes::kReduceThreads,
           kReduceSharedBytes, site, static_cast<const float*>(partial), table);
}

// One warp: the number of terms is about the number of parameters.
__global__ void clip_kernel(float* coefficient, float* norm, const float* terms, int64_t count,
                            float max_norm, VectorNorm kind) {
    wait_for_prior_kernels();
    float value;
    if (kind == VectorNorm::infinity) {
        uint32_t largest = 0;
        for (int64_t i = threadIdx.x; i < count; i += sizes::kWarp)
            largest = larger(largest, magnitude_bits(terms[i]));
        value = __uint_as_float(warp_max(largest));
    } else {
        double sum = 0.0;
        for (int64_t i = threadIdx.x; i < count; i += sizes::kWarp) sum += terms[i];
        sum = warp_sum(sum);
        if (kind == VectorNorm::two) sum = sqrt(sum);
        if (kind == VectorNorm::three) sum = cbrt(sum);
        value = static_cast<float>(sum);
    }
    if (threadIdx.x != 0) return;
    *norm = value;
    const float factor = max_norm > 0.0f && value > max_norm ? max_norm / value : 1.0f;
    *coefficient = is_finite(value) ? factor : quiet_nan();
}

// partial[chunk][c] = Σ over the rows of the chunk; one thread per column.
template <class Real>
__global__ void __launch_bounds__(sizes::kColumnThreads)
    column_sum_kernel(float* partial, Rows<Real> x, int64_t rows, int64_t cols) {
    wait_for_prior_kernels();
    const int64_t col = int64_t{blockIdx.x} * sizes::kColumnThreads + threadIdx.x, chunk = blockIdx.y;
    if (col >= cols) return;
    const int64_t begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t t = begin; t < end; ++t) sum += to_float(*x.at(t, col));
    partial[chunk * cols + col] = sum;
}

int64_t reduce_bytes(Tensor x) {
    return reduce_blocks(x.numel()) * int64_t{sizeof(float)};
}

}  // namespace
}  // namespace utilities_cu

void CudaOps::enqueue(const op::Fill& a, Stream& stream) {
    using namespace utilities_cu;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.x}), [&]<int W>() {
            map<W>({1, a.x.numel()}, Fill<Real>{a.x.as<Real>(), a.value}, stream);
        });
    });
}

void CudaOps::enqueue(const op::Scale& a, Stream& stream) {
    using namespace utilities_cu;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.x}), [&]<int W>() {
            map<W>({1, a.x.numel()}, Scale<Real>{a.x.as<Real>(), a.factor}, stream);
        });
    });
}

void CudaOps::enqueue(const op::Cast& a, Stream& stream) {
    using namespace utilities_cu;
    cuda::with_real(a.in.dtype, [&]<class From>() {
        cuda::with_real(a.out.dtype, [&]<class To>() {
            cuda::with_width<Bf16>(aligned_rows(kVectorWidth<Bf16>, {a.out, a.in}), [&]<int W>() {
                map<W>({1, a.in.numel()}, Cast<To, From>{a.out.as<To>(), a.in.as<From>()}, stream);
            });
        });
    });
}

void CudaOps::enqueue(const op::NormTerm& a, Stream& stream) {
    using namespace utilities_cu;
    if (a.pieces.empty()) return;
    cuda::with_real(a.pieces.front().x.dtype, [&]<class Real>() {
        std::vector<NormPiece<Real>> pieces;
        bool aligned = true;
        for (const op::NormTerm::Piece& piece : a.pieces) {
            pieces.push_back({piece.x.as<Real>(), piece.out.as<float>(), piece.x.numel()});
            aligned = aligned && aligned_rows(kVectorWidth<Real>, {piece.x});
        }
        const auto blocks = [](const NormPiece<Real>& piece) { return reduce_blocks(piece.count); };
        for_tables(pieces, blocks, [&](const PieceTable<NormPiece<Real>>& table) {
            const int64_t bytes = table.ends[table.size - 1] * int64_t{sizeof(float)};
            auto* const partial = static_cast<float*>(workspace(stream, bytes));
            switch (a.norm) {
                case VectorNorm::one:
                    return launch_norm_terms<Real, VectorNorm::one>(table, aligned, partial, stream);
                case VectorNorm::two:
                    return launch_norm_terms<Real, VectorNorm::two>(table, aligned, partial, stream);
                case VectorNorm::three:
                    return launch_norm_terms<Real, VectorNorm::three>(table, aligned, partial, stream);
                case VectorNorm::infinity:
                    return launch_norm_terms<Real, VectorNorm::infinity>(table, aligned, partial, stream);
            }
        });
    });
}

void CudaOps::enqueue(const op::Sum& a, Stream& stream) {
    using namespace utilities_cu;
    reduce_tensor<Itself>(a.out, a.x, a.accumulate, workspace(stream, reduce_bytes(a.x)), stream);
}

void CudaOps::enqueue(const op::CountNonfinite& a, Stream& stream) {
    using namespace utilities_cu;
    reduce_tensor<Nonfinite>(a.out, a.x, false, workspace(stream, reduce_bytes(a.x)), stream);
}

void CudaOps::enqueue(const op::ClipCoefficient& a, Stream& stream) {
    using namespace utilities_cu;
    launch(clip_kernel, 1, sizes::kWarp, 0, stream, a.coefficient.as<float>(), a.norm.as<float>(),
           a.terms.as<float>(), a.terms.numel(), a.max_norm, a.kind);
}

void CudaOps::enqueue(const op::ColumnSum& a, Stream& stream) {
    using namespace utilities_cu;
    const int64_t rows = a.x.rows(), cols = a.x.cols();
    if (cols == 0) return;
    const int64_t chunks = column_chunks(rows);
    auto* const partial = static_cast<float*>(workspace(stream, chunks * cols * int64_t{sizeof(float)}));
    const unsigned blocks = grid_of(cols, sizes::kColumnThreads);
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        launch(column_sum_kernel<Real>, dim3(blocks, static_cast<unsigned>(chunks)), sizes::kColumnThreads, 0,
               stream, partial, Rows<Real>(a.x), rows, cols);
    });
    add_chunks(a.out.as<float>(), nullptr, partial, chunks, 1, cols, a.accumulate, stream);
}

}  // namespace speedrun
