// RMSNorm and LayerNorm with the residual sum, forward and backward. A warp per row; rows of up to 1024
// (forward 2048) columns stay in registers between the passes over them, longer or unaligned ones are read
// again (from L1). Floor, real of b bytes: forward 2·T·C·b, with delta 4·T·C·b; backward 3·T·C·b, with
// dresidual 4·T·C·b. The gradients of gain and bias are a kernel of their own that reads dy and s once more:
// 2·T·C·b. Legend: T rows, C columns · W elements of a chunk · K chunks that a lane keeps in registers, 0:
// none · s the normed input, ŝ the normed, dŝ = dy·gain its gradient.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reduction.cuh"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

// body(k, col, chunk) for the chunks of a row that belong to this lane. With K > 0 also for those past the
// end (count 0 and less), so that the loop unrolls and arrays indexed by k stay in registers.
template <int W, int K, class Body>
__device__ __forceinline__ void for_columns(int64_t cols, Body&& body) {
    const auto visit = [&](int k, int64_t col) {
        const int64_t left = cols - col;
        body(k, col, Chunk<W>{left < W ? static_cast<int>(left < 0 ? 0 : left) : W});
    };
    if constexpr (K > 0) {
#pragma unroll
        for (int k = 0; k < K; ++k) visit(k, int64_t{k * tiles::kWarp + lane_index()} * W);
    } else {
        for (int64_t col = lane_index() * W; col < cols; col += tiles::kWarp * W) visit(0, col);
    }
}

template <class Real>
struct ForwardArguments {
    Rows<Real> y, sum, x, delta;
    float *mean, *rstd;
    const float *gain, *bias;
    int64_t rows, cols;
    bool has_delta, centered;
};

template <class Real, int W, int K>
__global__ void __launch_bounds__(tiles::kRowThreads) norm_forward_kernel(ForwardArguments<Real> a) {
    const int64_t row = int64_t{blockIdx.x} * (tiles::kRowThreads / tiles::kWarp) + warp_index();
    if (row >= a.rows) return;
    Vector<W> kept[K > 0 ? K : 1] = {};
    const auto load = [&](int k, int64_t col, Chunk<W> chunk) {
        if constexpr (K > 0) return kept[k];
        return chunk.load(a.has_delta ? a.sum.at(row, col) : a.x.at(row, col));
    };
    float sum = 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> v = chunk.load(a.x.at(row, col));
        if (a.has_delta) {
            const Vector<W> added = chunk.load(a.delta.at(row, col));
            // The rounded sum is what backward will see, so norm that.
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] = to_float(from_float<Real>(v[i] + added[i]));
            chunk.store(a.sum.at(row, col), v);
        }
#pragma unroll
        for (int i = 0; i < W; ++i) sum += v[i];
        if constexpr (K > 0) kept[k] = v;
    });
    const float center = a.centered ? warp_sum(sum) / static_cast<float>(a.cols) : 0.0f;
    float squares = 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        const Vector<W> v = load(k, col, chunk);
#pragma unroll
        for (int i = 0; i < W; ++i) squares += i < chunk.count ? (v[i] - center) * (v[i] - center) : 0.0f;
    });
    const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.cols) + kNormEpsilon);
    if (lane_index() == 0) {
        a.rstd[row] = r;
        if (a.centered) a.mean[row] = center;
    }
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> v = load(k, col, chunk);
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] = (v[i] - center) * r;
        if (a.gain) {
            const Vector<W> gain = chunk.load(a.gain + col);
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] *= gain[i];
        }
        if (a.bias) {
            const Vector<W> bias = chunk.load(a.bias + col);
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] += bias[i];
        }
        chunk.store(a.y.at(row, col), v);
    });
}

template <class Real>
struct BackwardArguments {
    Rows<Real> ds, dy, s, dresidual;
    const float *mean, *rstd, *gain;
    int64_t rows, cols;
    bool has_residual, centered;
};

template <class Real, int W, int K>
__global__ void __launch_bounds__(tiles::kRowThreads) norm_backward_kernel(BackwardArguments<Real> a) {
    const int64_t row = int64_t{blockIdx.x} * (tiles::kRowThreads / tiles::kWarp) + warp_index();
    if (row >= a.rows) return;
    const float center = a.centered ? a.mean[row] : 0.0f, r = a.rstd[row];
    Vector<W> kept_normed[K > 0 ? K : 1] = {}, kept_gradient[K > 0 ? K : 1] = {};
    const auto load = [&](int64_t col, Chunk<W> chunk, Vector<W>& normed, Vector<W>& gradient) {
        normed = chunk.load(a.s.at(row, col));
        gradient = chunk.load(a.dy.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) normed[i] = (normed[i] - center) * r;
        if (!a.gain) return;
        const Vector<W> gain = chunk.load(a.gain + col);
#pragma unroll
        for (int i = 0; i < W; ++i) gradient[i] *= gain[i];
    };
    float dot = 0.0f, sum = 0.0f;  // Σ dŝ·ŝ and Σ dŝ; dŝ is 0 past the end
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> normed, gradient;
        load(col, chunk, normed, gradient);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            dot += gradient[i] * normed[i];
            sum += gradient[i];
        }
        if constexpr (K > 0) {
            kept_normed[k] = normed;
            kept_gradient[k] = gradient;
        }
    });
    const float inverse = 1.0f / static_cast<float>(a.cols);
    dot = warp_sum(dot) * inverse;
    const float average = a.centered ? warp_sum(sum) * inverse : 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> normed, gradient;
        if constexpr (K > 0) {
            normed = kept_normed[k];
            gradient = kept_gradient[k];
        } else {
            load(col, chunk, normed, gradient);
        }
#pragma unroll
        for (int i = 0; i < W; ++i) gradient[i] = r * (gradient[i] - average - normed[i] * dot);
        if (a.has_residual) {
            const Vector<W> residual = chunk.load(a.dresidual.at(row, col));
#pragma unroll
            for (int i = 0; i < W; ++i) gradient[i] += residual[i];
        }
        chunk.store(a.ds.at(row, col), gradient);
    });
}

// partial[chunk][0][c] = Σ dy·ŝ, partial[chunk][1][c] = Σ dy over the rows of the chunk; a thread per column.
template <class Real>
__global__ void __launch_bounds__(tiles::kColumnThreads)
    norm_parameters_kernel(float* partial, Rows<Real> dy, Rows<Real> s, const float* mean, const float* rstd,
                           int64_t rows, int64_t cols, bool centered) {
    const int64_t col = int64_t{blockIdx.x} * tiles::kColumnThreads + threadIdx.x, chunk = blockIdx.y;
    if (col >= cols) return;
    const int64_t begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
    float of_gain = 0.0f, of_bias = 0.0f;
#pragma unroll 4
    for (int64_t t = begin; t < end; ++t) {
        const float d = to_float(*dy.at(t, col)), center = centered ? mean[t] : 0.0f;
        of_gain += d * ((to_float(*s.at(t, col)) - center) * rstd[t]);
        of_bias += d;
    }
    partial[chunk * 2 * cols + col] = of_gain;
    partial[chunk * 2 * cols + cols + col] = of_bias;
}

float* optional(Tensor tensor) {
    return tensor.present() ? tensor.as<float>() : nullptr;
}

template <int W>
constexpr int kept_chunks(int columns) {  // of a lane, for rows of this many columns
    return columns / (tiles::kWarp * W);
}

}  // namespace

void CudaOps::norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta,
                           Tensor gain, Tensor bias, NormKind kind, Stream& stream) {
    const int64_t rows = x.rows(), cols = x.cols();
    check_norm_forward(y, sum, mean, rstd, x, delta, gain, bias, kind);
    if (rows == 0) return;
    cuda::with_real(x.dtype, [&]<class Real>() {
        const bool centered = kind == NormKind::layernorm;
        const ForwardArguments<Real> arguments{Rows<Real>(y),
                                               Rows<Real>(sum),
                                               Rows<Real>(x),
                                               Rows<Real>(delta),
                                               optional(mean),
                                               optional(rstd),
                                               optional(gain),
                                               optional(bias),
                                               rows,
                                               cols,
                                               delta.present(),
                                               centered};
        constexpr int kWide = kVectorWidth<Real>;
        auto* kernel = norm_forward_kernel<Real, 1, 0>;
        if (aligned_rows(kWide, {y, sum, x, delta, gain, bias})) {
            kernel = cols <= 1024   ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(1024)>
                     : cols <= 2048 ? norm_forward_kernel<Real, kWide, kept_chunks<kWide>(2048)>
                                    : norm_forward_kernel<Real, kWide, 0>;
        }
        launch(kernel, grid_of(rows, tiles::kRowThreads / tiles::kWarp), tiles::kRowThreads, 0, stream,
               arguments);
    });
}

void CudaOps::norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean,
                            Tensor rstd, Tensor gain, Tensor dresidual, bool accumulate, NormKind kind,
                            Stream& stream) {
    const int64_t rows = s.rows(), cols = s.cols();
    check_norm_backward(ds, dgain, dbias, dy, s, mean, rstd, gain, dresidual, kind);
    const bool centered = kind == NormKind::layernorm;
    if (dgain.present() || dbias.present()) {  // before ds, which may alias dy
        const int64_t chunks = column_chunks(rows);
        auto* const partial =
            static_cast<float*>(workspace(stream, chunks * 2 * cols * int64_t{sizeof(float)}));
        cuda::with_real(s.dtype, [&]<class Real>() {
            const dim3 grid(grid_of(cols, tiles::kColumnThreads), static_cast<unsigned>(chunks));
            launch(norm_parameters_kernel<Real>, grid, tiles::kColumnThreads, 0, stream, partial,
                   Rows<Real>(dy), Rows<Real>(s), optional(mean), optional(rstd), rows, cols, centered);
        });
        if (dgain.present())
            add_chunks(dgain.as<float>(), partial, chunks, 2 * cols, cols, accumulate, stream);
        if (dbias.present())
            add_chunks(dbias.as<float>(), partial + cols, chunks, 2 * cols, cols, accumulate, stream);
    }
    if (rows == 0) return;
    cuda::with_real(s.dtype, [&]<class Real>() {
        const BackwardArguments<Real> arguments{Rows<Real>(ds),        Rows<Real>(dy), Rows<Real>(s),
                                                Rows<Real>(dresidual), optional(mean), optional(rstd),
                                                optional(gain),        rows,           cols,
                                                dresidual.present(),   centered};
        constexpr int kWide = kVectorWidth<Real>;
        auto* kernel = norm_backward_kernel<Real, 1, 0>;
        if (aligned_rows(kWide, {ds, dy, s, dresidual, gain})) {
            kernel = cols <= 1024 ? norm_backward_kernel<Real, kWide, kept_chunks<kWide>(1024)>
                                  : norm_backward_kernel<Real, kWide, 0>;
        }
        launch(kernel, grid_of(rows, tiles::kRowThreads / tiles::kWarp), tiles::kRowThreads, 0, stream,
               arguments);
    });
}

}  // namespace speedrun
