// Kernels of RMSNorm and LayerNorm with the residual sum. One warp per row. Rows of up to 1024 columns (forward 2048)
// stay in registers between passes; longer or unaligned rows are read again (from L1).
// Roofline bound, real of b bytes: forward 2·T·C·b; with delta 4·T·C·b. Backward 3·T·C·b; with dresidual 4·T·C·b. The
// gradients of gain and bias have a separate kernel that reads dy and s again: 2·T·C·b.
// Legend: T rows, C columns · W elements per chunk · K chunks per lane kept in registers, 0: none · s input of the
// norm, ŝ normalized s, dŝ = dy·gain its gradient.
#pragma once

#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/ops/ops.h"

namespace speedrun::norm {

// Calls body(k, col, chunk) for this lane's chunks of a row. With K > 0 it also visits chunks past the end (count ≤ 0),
// so that the loop unrolls and arrays indexed by k stay in registers.
template <int W, int K, class Body>
__device__ __forceinline__ void for_columns(int64_t cols, Body&& body) {
    const auto visit = [&](int k, int64_t col) {
        const int64_t left = cols - col;
        body(k, col, Chunk<W>{left < W ? static_cast<int>(left < 0 ? 0 : left) : W});
    };
    if constexpr (K > 0) {
#pragma unroll
        for (int k = 0; k < K; ++k) visit(k, int64_t{k * sizes::kWarp + lane_index()} * W);
    } else {
        for (int64_t col = lane_index() * W; col < cols; col += sizes::kWarp * W) visit(0, col);
    }
}

template <class Real, int W>
__device__ __forceinline__ void round_to(Vector<W>& v) {  // rounds as a store and a load would
#pragma unroll
    for (int i = 0; i < W; ++i) v[i] = to_float(from_float<Real>(v[i]));
}

constexpr int kRowsOfBlock = sizes::kRowThreads / sizes::kWarp;

template <class Real>
struct ForwardArguments {
    Rows<Real> y, sum, x, delta;  // sum: receives x + delta
    float *mean, *rstd;
    const float *gain, *bias;
    uint32_t* amax;  // bits of max|y|; null: not requested
    int64_t rows, cols;
    float epsilon;
    bool has_delta, centered;
};

// A lane's part of a row, packed as in memory: all loads are in flight before the first use, in half the registers of
// the unpacked values. K = 0: not kept.
template <class Real, int W, int K>
struct KeptRow {
    Packed<W, Real> kept[K > 0 ? K : 1] = {};

    __device__ __forceinline__ void fetch(const Rows<Real>& rows, int64_t row, int64_t cols) {
        if constexpr (K > 0) {
            if (cols % W == 0) {  // whole chunks: their loads are predicates
                for_columns<W, K>(cols, [&](int k, int64_t col, Chunk<W> chunk) {
                    if (chunk.count > 0) kept[k] = load_packed<W>(rows.at(row, col));
                });
            } else {
                for_columns<W, K>(cols, [&](int k, int64_t col, Chunk<W> chunk) {
                    kept[k] = chunk.load_packed(rows.at(row, col));
                });
            }
        }
    }
    __device__ __forceinline__ Vector<W> at(int k, const Rows<Real>& rows, int64_t row, int64_t col,
                                            Chunk<W> chunk) const {
        if constexpr (K > 0) return unpack<W, Real>(kept[k]);
        return chunk.load(rows.at(row, col));
    }
};

// One row per warp. form(k, col, chunk): s of a chunk, 0 past the end; again(col, chunk): s as stored, used with K = 0.
template <class Real, int W, int K, class Form, class Again>
__device__ __forceinline__ void forward_row(const ForwardArguments<Real>& a, int64_t row, const Form& form,
                                            const Again& again) {
    Vector<W> kept[K > 0 ? K : 1] = {};
    const auto load = [&](int k, int64_t col, Chunk<W> chunk) {
        if constexpr (K > 0) return kept[k];
        return again(col, chunk);
    };
    float sum = 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        const Vector<W> v = form(k, col, chunk);
#pragma unroll
        for (int i = 0; i < W; ++i) sum += v[i];
        if constexpr (K > 0) kept[k] = v;
    });
    const float center = a.centered ? warp_sum(sum) / static_cast<float>(a.cols) : 0.0f;
    float squares = 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        const Vector<W> v = load(k, col, chunk);
#pragma unroll
        for (int i = 0; i < W; ++i)
            if (i < chunk.count) squares = fmaf(v[i] - center, v[i] - center, squares);
    });
    const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.cols) + a.epsilon);
    if (lane_index() == 0) {
        a.rstd[row] = r;
        if (a.centered) a.mean[row] = center;
    }
    uint32_t largest = 0;
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
        if (a.amax) {
#pragma unroll
            for (int i = 0; i < W; ++i)
                if (i < chunk.count) largest = larger(largest, magnitude_bits(v[i]));
        }
        chunk.store(a.y.at(row, col), v);
    });
    // Rounding keeps the order of values: that of the largest is the largest that was stored.
    if (a.amax) note_amax(a.amax, magnitude_bits(to_float(from_float<Real>(__uint_as_float(largest)))));
}

// Minimum resident blocks per multiprocessor; 0: the compiler chooses. Four would spill rows of 1024 on sm_80.
template <class Real, int K>
constexpr int kBlocksForward = sizeof(Real) == 4 || K == 0 || K > 4 ? 0
                               : K == 4 && !kSm90                   ? 3
                                                                    : 4;

template <class Real, int W, int K>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocksForward<Real, K>)
    norm_forward_kernel(ForwardArguments<Real> a) {
    wait_for_prior_kernels();
    const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index();
    if (row >= a.rows) return;
    KeptRow<Real, W, K> x, delta;
    x.fetch(a.x, row, a.cols);
    if (a.has_delta) delta.fetch(a.delta, row, a.cols);
    const auto form = [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> v = x.at(k, a.x, row, col, chunk);
        if (a.has_delta) {
            const Vector<W> added = delta.at(k, a.delta, row, col, chunk);
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] += added[i];
            round_to<Real>(v);  // continue with the rounded sum, which backward reads
            chunk.store(a.sum.at(row, col), v);
        }
        return v;
    };
    forward_row<Real, W, K>(a, row, form, [&](int64_t col, Chunk<W> chunk) {
        return chunk.load((a.has_delta ? a.sum : a.x).at(row, col));
    });
}

template <class Real>
struct BackwardArguments {
    Rows<Real> ds, dy, s, dresidual;
    const float *mean, *rstd, *gain;
    int64_t rows, cols;
    bool has_residual, centered;
};

// Chunks of a tensor that are needed only after the row sums, but loaded before them, if registers allow (bf16).
template <class Real, int K>
constexpr int kAhead = sizeof(Real) == 2 ? K : 0;

// One row per warp. finish(k, col, chunk, ds) consumes the result. KResidual: chunks of dresidual loaded ahead, K or 0.
template <class Real, int W, int K, int KResidual, class Finish>
__device__ __forceinline__ void backward_row(const BackwardArguments<Real>& a, int64_t row,
                                             const Finish& finish) {
    KeptRow<Real, W, K> s, dy;
    KeptRow<Real, W, KResidual> dresidual;
    s.fetch(a.s, row, a.cols);
    dy.fetch(a.dy, row, a.cols);
    if (a.has_residual) dresidual.fetch(a.dresidual, row, a.cols);
    const float center = a.centered ? a.mean[row] : 0.0f, r = a.rstd[row];
    const auto take = [&](int k, int64_t col, Chunk<W> chunk, Vector<W>& normed, Vector<W>& gradient) {
        normed = s.at(k, a.s, row, col, chunk);
        gradient = dy.at(k, a.dy, row, col, chunk);
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
        take(k, col, chunk, normed, gradient);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            dot = fmaf(gradient[i], normed[i], dot);
            sum += gradient[i];
        }
    });
    const float inverse = 1.0f / static_cast<float>(a.cols);
    dot = warp_sum(dot) * inverse;
    const float average = a.centered ? warp_sum(sum) * inverse : 0.0f;
    for_columns<W, K>(a.cols, [&](int k, int64_t col, Chunk<W> chunk) {
        Vector<W> normed, gradient;
        take(k, col, chunk, normed, gradient);
#pragma unroll
        for (int i = 0; i < W; ++i) gradient[i] = r * (gradient[i] - average - normed[i] * dot);
        if (a.has_residual) {
            const Vector<W> residual = dresidual.at(k, a.dresidual, row, col, chunk);
#pragma unroll
            for (int i = 0; i < W; ++i) gradient[i] += residual[i];
        }
        finish(k, col, chunk, gradient);
    });
}

template <class Real, int W, int K>
__global__ void __launch_bounds__(sizes::kRowThreads) norm_backward_kernel(BackwardArguments<Real> a) {
    wait_for_prior_kernels();
    const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp_index();
    if (row >= a.rows) return;
    backward_row<Real, W, K, kAhead<Real, K>>(
        a, row, [&](int, int64_t col, Chunk<W> chunk, const Vector<W>& gradient) {
            chunk.store(a.ds.at(row, col), gradient);
        });
}

// partial[chunk][0][c] = Σ dy·ŝ, partial[chunk][1][c] = Σ dy over the rows of the chunk; a thread per column.
template <class Real>
__global__ void __launch_bounds__(sizes::kColumnThreads)
    norm_parameters_kernel(float* partial, Rows<Real> dy, Rows<Real> s, const float* mean, const float* rstd,
                           int64_t rows, int64_t cols, bool centered) {
    wait_for_prior_kernels();
    const int64_t col = int64_t{blockIdx.x} * sizes::kColumnThreads + threadIdx.x, chunk = blockIdx.y;
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

// ---- on the host

inline float* optional(Tensor tensor) {
    return tensor.present() ? tensor.as<float>() : nullptr;
}

template <int W>
constexpr int kept_chunks(int columns) {  // chunks per lane for rows of this length
    return columns / (sizes::kWarp * W);
}

template <class Real>
ForwardArguments<Real> forward_arguments(const op::NormForward& a) {
    return {Rows<Real>(a.y),
            Rows<Real>(a.sum),
            Rows<Real>(a.x),
            Rows<Real>(a.delta),
            optional(a.mean),
            optional(a.rstd),
            optional(a.gain),
            optional(a.bias),
            static_cast<uint32_t*>(a.amax.data),
            a.x.rows(),
            a.x.cols(),
            a.epsilon,
            a.delta.present(),
            a.kind == NormKind::layernorm};
}

template <class Real>
BackwardArguments<Real> backward_arguments(const op::NormBackward& a) {
    return {Rows<Real>(a.ds),
            Rows<Real>(a.dy),
            Rows<Real>(a.s),
            Rows<Real>(a.dresidual),
            optional(a.mean),
            optional(a.rstd),
            optional(a.gain),
            a.s.rows(),
            a.s.cols(),
            a.dresidual.present(),
            a.kind == NormKind::layernorm};
}

}  // namespace speedrun::norm
