// Matmuls with at most 64 columns and at most 64 outputs, and their gradients in one pass over the rows.
// Tiles of rows and all of W are kept in shared memory, in f32. Columns are zero-padded to 16 or 64, so that
// loops over them unroll.
// Roofline bound, real of b bytes: forward T·(K·b + 4·N), backward T·(2·K·b + 8·N) (x, y, dy read, dx
// written), with K·b of a row rounded up to sectors of 32 bytes. Legend: T rows, K columns padded, N outputs
// · a quad: four adjacent columns.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace narrow_linear_cu {
namespace {

__device__ __forceinline__ float activated(float z, GateActivation activation) {
    switch (activation) {
        case GateActivation::sigmoid:
            return __fdividef(1.0f, 1.0f + __expf(-z));
        case GateActivation::two_sigmoid:
            return __fdividef(2.0f, 1.0f + __expf(-z));
        // If e^2z overflows to infinity, the quotient is 0.
        case GateActivation::tanh:
            return 1.0f - __fdividef(2.0f, __expf(2.0f * z) + 1.0f);
        case GateActivation::identity:
            break;
    }
    return z;
}

// Derivative of the activation from its value y.
__device__ __forceinline__ float derivative(float y, GateActivation activation) {
    switch (activation) {
        case GateActivation::sigmoid:
            return y * (1.0f - y);
        case GateActivation::two_sigmoid:
            return y * (1.0f - 0.5f * y);
        case GateActivation::tanh:
            return (1.0f - y) * (1.0f + y);
        case GateActivation::identity:
            break;
    }
    return 1.0f;
}

// Inputs of both directions.
template <class Real>
struct Operands {
    Rows<Real> x;
    const Real* weight;  // null: weight_f32 is used
    const float* weight_f32;
    Rows<float> y;
    int64_t rows;
    int cols, outputs;
    float scale;
    GateActivation activation;
    bool aligned;  // rows of x and dx are aligned to quads
};

constexpr int kForwardRows = sizes::kNarrowThreads;
constexpr int kBackwardRows = sizes::kNarrowBackwardThreads / 4;

template <int K>
constexpr int kForwardStride =
    K + 4;  // row pitch in shared memory, in floats: quads of eight rows use different banks

__host__ __device__ constexpr int odd(int n) {
    return n | 1;
}
template <int K>
__host__ __device__ constexpr int64_t weight_bytes(int outputs) {
    return int64_t{outputs} * K * 4;
}

template <int K, class Real>
__device__ __forceinline__ void load_weight(float* to, const Operands<Real>& a) {
    for (int i = static_cast<int>(threadIdx.x); i < a.outputs * K; i += static_cast<int>(blockDim.x)) {
        const int n = i / K, k = i % K, from = n * a.cols + k;
        float value = 0.0f;
        if (k < a.cols) value = a.weight ? to_float(a.weight[from]) : a.weight_f32[from];
        to[i] = value;
    }
}

// A quad of a row of x or dx; columns outside the row are 0 and not stored.
template <class Real>
__device__ __forceinline__ Vector<4> load_quad(const Real* row, int col, int cols, bool aligned) {
    if (aligned) return Chunk<4>{cols - col < 4 ? cols - col : 4}.load(row + col);
    Vector<4> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = col + i < cols ? to_float(row[col + i]) : 0.0f;
    return result;
}
template <class Real>
__device__ __forceinline__ void store_quad(Real* row, int col, int cols, bool aligned, const Vector<4>& x) {
    if (aligned) return Chunk<4>{cols - col < 4 ? cols - col : 4}.store(row + col, x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (col + i < cols) row[col + i] = from_float<Real>(x[i]);
}

// Loads rows of x from `first` on; rows from `end` on are 0.
template <int K, int kThreads, int kTileRows, int kStride, class Real>
__device__ __forceinline__ void load_tile(float* to, const Operands<Real>& a, int64_t first, int64_t end) {
    constexpr int kQuads = K / 4;
#pragma unroll 4
    for (int item = static_cast<int>(threadIdx.x); item < kTileRows * kQuads; item += kThreads) {
        const int row = item / kQuads, col = item % kQuads * 4;
        Vector<4> quad{};
        if (first + row < end) quad = load_quad(a.x.at(first + row), col, a.cols, a.aligned);
        store_vector<4>(to + row * kStride + col, quad);
    }
}

template <class Real, int K>
__global__ void __launch_bounds__(sizes::kNarrowThreads)
    narrow_linear_forward_kernel(Operands<Real> a, const float* bias) {
    wait_for_prior_kernels();
    constexpr int kStride = kForwardStride<K>;
    float* const weight = shared_memory<float>(0);
    float* const tile = shared_memory<float>(weight_bytes<K>(a.outputs));  // rows of x, then of y
    const int64_t first = int64_t{blockIdx.x} * kForwardRows;
    load_weight<K>(weight, a);
    load_tile<K, sizes::kNarrowThreads, kForwardRows, kStride>(tile, a, first, a.rows);
    __syncthreads();
    Vector<4> x[K / 4];
#pragma unroll
    for (int q = 0; q < K / 4; ++q) x[q] = load_vector<4>(tile + threadIdx.x * kStride + 4 * q);
    __syncthreads();
    const int stride = odd(a.outputs);
    for (int n = 0; n < a.outputs; ++n) {
        Vector<4> sums{};
#pragma unroll
        for (int q = 0; q < K / 4; ++q) {
            const Vector<4> w = load_vector<4>(weight + n * K + 4 * q);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = fmaf(x[q][i], w[i], sums[i]);
        }
        float z = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        if (bias) z += bias[n];
        tile[static_cast<int>(threadIdx.x) * stride + n] = activated(a.scale * z, a.activation);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kForwardRows * a.outputs; i += sizes::kNarrowThreads) {
        const int row = i / a.outputs, n = i - row * a.outputs;
        if (first + row < a.rows) *a.y.at(first + row, n) = tile[row * stride + n];
    }
}

template <class Real>
struct Gradients {
    Rows<Real> dx;
    Rows<float> dy;
    float *partial_weight, *partial_bias;  // [chunks][N·columns], [chunks][N]; null: not requested
    bool accumulate_x, needs_x;
};

// One block per chunk of rows, tile by tile. For the rows of a tile, a thread owns a fourth of a row's quads
// of dx. For all rows of the chunk it owns quads of dW. Two blocks per multiprocessor: without the limit the
// compiler aims at more, and spills.
template <class Real, int K>
__global__ void __launch_bounds__(sizes::kNarrowBackwardThreads, 2)
    narrow_linear_backward_kernel(Operands<Real> a, Gradients<Real> g) {
    wait_for_prior_kernels();
    constexpr int kThreads = sizes::kNarrowBackwardThreads, kQuads = K / 4, kOwn = K / 16;
    const int stride = odd(a.outputs), thread = static_cast<int>(threadIdx.x);
    float* const weight = shared_memory<float>(0);
    float* const x = shared_memory<float>(weight_bytes<K>(a.outputs));
    float* const dz = shared_memory<float>(weight_bytes<K>(a.outputs + kBackwardRows));
    const int64_t begin = a.rows * blockIdx.x / gridDim.x, end = a.rows * (blockIdx.x + 1) / gridDim.x;
    if (g.needs_x) load_weight<K>(weight, a);
    Vector<4> dweight[kOwn] = {};
    float dbias = 0.0f;
    for (int64_t first = begin; first < end; first += kBackwardRows) {
        if (first > begin) __syncthreads();  // the tile before may still be in use
        for (int i = thread; i < kBackwardRows * a.outputs; i += kThreads) {
            const int row = i / a.outputs, n = i - row * a.outputs;
            float value = 0.0f;
            if (first + row < end) {
                const float y = *a.y.at(first + row, n), dy = *g.dy.at(first + row, n);
                value = a.scale * (dy * derivative(y, a.activation));
            }
            dz[row * stride + n] = value;
        }
        if (g.partial_weight) load_tile<K, kThreads, kBackwardRows, K>(x, a, first, end);
        __syncthreads();
        const int64_t row = first + thread / 4;
        if (g.needs_x && row < end) {
#pragma unroll
            for (int m = 0; m < kOwn; ++m) {
                const int col = 16 * m + thread % 4 * 4;
                Vector<4> sum{};
                for (int n = 0; n < a.outputs; ++n) {
                    const float d = dz[thread / 4 * stride + n];
                    const Vector<4> w = load_vector<4>(weight + n * K + col);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] = fmaf(d, w[i], sum[i]);
                }
                if (g.accumulate_x) {
                    const Vector<4> before = load_quad(g.dx.at(row), col, a.cols, a.aligned);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] += before[i];
                }
                store_quad(g.dx.at(row), col, a.cols, a.aligned, sum);
            }
        }
        if (g.partial_weight) {
#pragma unroll
            for (int m = 0; m < kOwn; ++m) {
                const int quad = thread + m * kThreads, n = quad / kQuads, col = quad % kQuads * 4;
                if (n >= a.outputs) continue;
#pragma unroll 4
                for (int r = 0; r < kBackwardRows; ++r) {
                    const float d = dz[r * stride + n];
                    const Vector<4> v = load_vector<4>(x + r * K + col);
#pragma unroll
                    for (int i = 0; i < 4; ++i) dweight[m][i] = fmaf(d, v[i], dweight[m][i]);
                }
            }
        }
        if (g.partial_bias && thread < a.outputs) {
#pragma unroll 4
            for (int r = 0; r < kBackwardRows; ++r) dbias += dz[r * stride + thread];
        }
    }
    if (g.partial_weight) {
        float* const to = g.partial_weight + int64_t{blockIdx.x} * a.outputs * a.cols;
#pragma unroll
        for (int m = 0; m < kOwn; ++m) {
            const int quad = thread + m * kThreads, n = quad / kQuads, col = quad % kQuads * 4;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (n < a.outputs && col + i < a.cols) to[n * a.cols + col + i] = dweight[m][i];
        }
    }
    if (g.partial_bias && thread < a.outputs)
        g.partial_bias[int64_t{blockIdx.x} * a.outputs + thread] = dbias;
}

// Calls body.template operator()<K>() with the smallest sufficient K.
template <class Body>
void with_columns(int64_t cols, Body&& body) {
    if (cols <= 16) return body.template operator()<16>();
    body.template operator()<64>();
}

template <class Real, class Call>
Operands<Real> operands(const Call& a) {
    const bool f32 = a.weight.dtype == DType::f32;
    return {Rows<Real>(a.x),
            f32 ? nullptr : a.weight.template as<Real>(),
            f32 ? a.weight.template as<float>() : nullptr,
            Rows<float>(a.y),
            a.x.rows(),
            static_cast<int>(a.x.cols()),
            static_cast<int>(a.y.cols()),
            a.scale,
            a.activation,
            false};
}

}  // namespace
}  // namespace narrow_linear_cu

void CudaOps::enqueue(const op::NarrowLinearForward& a, Stream& stream) {
    using namespace narrow_linear_cu;
    if (a.x.rows() == 0) return;
    const float* const bias = a.bias.present() ? a.bias.as<float>() : nullptr;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        with_columns(a.x.cols(), [&]<int K>() {
            Operands<Real> arguments = operands<Real>(a);
            arguments.aligned = aligned_rows(4, {a.x});
            const int64_t stride = std::max(kForwardStride<K>, odd(arguments.outputs));
            launch(narrow_linear_forward_kernel<Real, K>, grid_of(a.x.rows(), kForwardRows),
                   sizes::kNarrowThreads, weight_bytes<K>(arguments.outputs) + kForwardRows * stride * 4,
                   stream, arguments, bias);
        });
    });
}

void CudaOps::enqueue(const op::NarrowLinearBackward& a, Stream& stream) {
    using namespace narrow_linear_cu;
    const int64_t outputs = a.y.cols(), cols = a.x.cols(), chunks = column_chunks(a.x.rows());
    auto* const partial =
        static_cast<float*>(workspace(stream, chunks * (outputs * cols + outputs) * int64_t{sizeof(float)}));
    float* const partial_weight = a.dweight.present() ? partial : nullptr;
    float* const partial_bias = a.dbias.present() ? partial + chunks * outputs * cols : nullptr;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        with_columns(cols, [&]<int K>() {
            Operands<Real> arguments = operands<Real>(a);
            arguments.aligned = aligned_rows(4, {a.x, a.dx});
            const Gradients<Real> gradients{Rows<Real>(a.dx), Rows<float>(a.dy), partial_weight,
                                            partial_bias,     a.accumulate_x,    a.dx.present()};
            const int64_t bytes = weight_bytes<K>(arguments.outputs + kBackwardRows) +
                                  kBackwardRows * odd(arguments.outputs) * int64_t{sizeof(float)};
            launch(narrow_linear_backward_kernel<Real, K>, static_cast<unsigned>(chunks),
                   sizes::kNarrowBackwardThreads, bytes, stream, arguments, gradients);
        });
    });
    if (partial_weight)
        add_chunks(a.dweight.as<float>(), nullptr, partial_weight, chunks, 1, outputs * cols, a.accumulate,
                   stream);
    if (partial_bias)
        add_chunks(a.dbias.as<float>(), nullptr, partial_bias, chunks, 1, outputs, a.accumulate, stream);
}

}  // namespace speedrun
