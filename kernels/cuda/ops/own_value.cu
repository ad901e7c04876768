// Removes from the output of each head its component along the token's own value (XSA), with gradients in one
// pass. A group of G lanes has one head of one token. If a lane has a single chunk of it, the usual case, the
// loaded values stay in registers.
// Roofline bound, real of b bytes: forward 3·T·H·D·b, backward 5·T·H·D·b, one more if dv accumulates. Legend:
// T tokens, H heads, D head size · W elements of a chunk · G lanes of a group.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace own_value_cu {
namespace {

// One alpha per head, or one per head and token.
struct Alpha {
    const float* data;
    int64_t stride;  // 0: shared by all tokens

    explicit Alpha(const Tensor& alpha)
        : data(alpha.as<float>()), stride(alpha.rank == 2 ? alpha.row_stride : 0) {}
    __device__ __forceinline__ float tanh_at(int64_t row, int head) const {
        return tanhf(data[row * stride + head]);
    }
};

struct HeadShape {
    int64_t rows;
    int heads, head_dim, group;
};

template <class Real>
struct ForwardArguments {
    Rows<Real> y, o, v;
    Alpha alpha;
    HeadShape shape;
};

template <class Real, int W>
__global__ void __launch_bounds__(sizes::kRowThreads)
    exclude_own_value_forward_kernel(ForwardArguments<Real> a) {
    wait_for_prior_kernels();
    const int group = a.shape.group, dim = a.shape.head_dim,
              begin = static_cast<int>(threadIdx.x) % group * W, stride = group * W;
    const int64_t vector = (int64_t{blockIdx.x} * sizes::kRowThreads + threadIdx.x) / group;
    const bool live = vector < a.shape.rows * a.shape.heads;  // other lanes still take part in warp sums
    const int64_t row = live ? vector / a.shape.heads : 0;
    const int head = live ? static_cast<int>(vector - row * a.shape.heads) : 0;
    const int64_t offset = int64_t{head} * dim;
    Vector<W> o{}, v{};
    float product = 0.0f, square = 0.0f;
    if (live) {
        for (int col = begin; col < dim; col += stride) {
            o = load_vector<W>(a.o.at(row, offset + col));
            v = load_vector<W>(a.v.at(row, offset + col));
#pragma unroll
            for (int i = 0; i < W; ++i) {
                product = fmaf(o[i], v[i], product);
                square = fmaf(v[i], v[i], square);
            }
        }
    }
    product = group_sum(product, group);
    square = group_sum(square, group);
    if (!live) return;
    const float share =
        a.alpha.tanh_at(row, head) * product / fmaxf(square, op::ExcludeOwnValueForward::kMinSquare);
    for (int col = begin; col < dim; col += stride) {
        if (stride < dim) {
            o = load_vector<W>(a.o.at(row, offset + col));
            v = load_vector<W>(a.v.at(row, offset + col));
        }
#pragma unroll
        for (int i = 0; i < W; ++i) o[i] -= share * v[i];
        store_vector<W>(a.y.at(row, offset + col), o);
    }
}

template <class Real>
struct BackwardArguments {
    Rows<Real> d_o, dv, dy, o, v;
    Alpha alpha;
    Rows<float> dalpha;  // per token; null: partial
    float* partial;      // [chunks][H], for an alpha that all tokens share
    HeadShape shape;
    bool accumulate_v, accumulate_alpha;
};

// One block per head and chunk of tokens.
template <class Real, int W>
__global__ void __launch_bounds__(sizes::kRowThreads)
    exclude_own_value_backward_kernel(BackwardArguments<Real> a) {
    wait_for_prior_kernels();
    const int group = a.shape.group, dim = a.shape.head_dim, lane = static_cast<int>(threadIdx.x) % group,
              begin = lane * W, stride = group * W, groups = sizes::kRowThreads / group,
              head = static_cast<int>(blockIdx.y);
    const int64_t offset = int64_t{head} * dim, end = a.shape.rows * (blockIdx.x + 1) / gridDim.x;
    float sum = 0.0f;
    // All groups of a warp run the same number of rounds: each takes part in its warp's sums.
    for (int64_t first = a.shape.rows * blockIdx.x / gridDim.x; first < end; first += groups) {
        const int64_t row = first + static_cast<int>(threadIdx.x) / group;
        const bool live = row < end;
        Vector<W> dy{}, o{}, v{};
        float p = 0.0f, q = 0.0f, square = 0.0f;
        if (live) {
            for (int col = begin; col < dim; col += stride) {
                dy = load_vector<W>(a.dy.at(row, offset + col));
                o = load_vector<W>(a.o.at(row, offset + col));
                v = load_vector<W>(a.v.at(row, offset + col));
#pragma unroll
                for (int i = 0; i < W; ++i) {
                    p = fmaf(o[i], v[i], p);
                    q = fmaf(dy[i], v[i], q);
                    square = fmaf(v[i], v[i], square);
                }
            }
        }
        p = group_sum(p, group);
        q = group_sum(q, group);
        square = group_sum(square, group);
        if (!live) continue;
        const float factor = a.alpha.tanh_at(row, head),
                    n = fmaxf(square, op::ExcludeOwnValueForward::kMinSquare), of_o = factor * q / n,
                    of_dy = factor * p / n,
                    of_v = square > op::ExcludeOwnValueForward::kMinSquare ? 2.0f * of_o * p / n : 0.0f,
                    term = (factor * factor - 1.0f) * p * q / n;
        for (int col = begin; col < dim; col += stride) {
            if (stride < dim) {
                dy = load_vector<W>(a.dy.at(row, offset + col));
                o = load_vector<W>(a.o.at(row, offset + col));
                v = load_vector<W>(a.v.at(row, offset + col));
            }
            Vector<W> dv{};
            if (a.accumulate_v) dv = load_vector<W>(a.dv.at(row, offset + col));
#pragma unroll
            for (int i = 0; i < W; ++i) {
                dv[i] += of_v * v[i] - (of_o * o[i] + of_dy * dy[i]);
                dy[i] -= of_o * v[i];
            }
            store_vector<W>(a.dv.at(row, offset + col), dv);
            store_vector<W>(a.d_o.at(row, offset + col), dy);
        }
        if (lane != 0) continue;
        if (!a.dalpha.data) {
            sum += term;
        } else {
            float* const to = a.dalpha.at(row, head);
            *to = a.accumulate_alpha ? *to + term : term;
        }
    }
    if (a.dalpha.data) return;
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.partial[int64_t{blockIdx.x} * a.shape.heads + head] = sum;
}

// Calls body.template operator()<W>(shape); W divides the head size, so that no chunk spans two heads.
template <class Real, class Body>
void with_heads(const Tensor& like, const Tensor& alpha, std::initializer_list<Tensor> tensors, Body&& body) {
    const int64_t heads = alpha.rank == 2 ? alpha.cols() : alpha.numel(), dim = like.cols() / heads;
    const bool whole = dim % kVectorWidth<Real> == 0;
    cuda::with_width<Real>(whole && aligned_rows(kVectorWidth<Real>, tensors), [&]<int W>() {
        HeadShape shape{like.rows(), static_cast<int>(heads), static_cast<int>(dim), 1};
        while (shape.group < sizes::kWarp && shape.group * W < dim) shape.group *= 2;
        body.template operator()<W>(shape);
    });
}

}  // namespace
}  // namespace own_value_cu

void CudaOps::enqueue(const op::ExcludeOwnValueForward& a, Stream& stream) {
    using namespace own_value_cu;
    if (a.y.rows() == 0) return;
    cuda::with_real(a.y.dtype, [&]<class Real>() {
        with_heads<Real>(a.y, a.alpha, {a.y, a.o, a.v}, [&]<int W>(const HeadShape& shape) {
            const ForwardArguments<Real> arguments{Rows<Real>(a.y), Rows<Real>(a.o), Rows<Real>(a.v),
                                                   Alpha(a.alpha), shape};
            launch(exclude_own_value_forward_kernel<Real, W>,
                   grid_of(shape.rows * shape.heads * shape.group, sizes::kRowThreads), sizes::kRowThreads, 0,
                   stream, arguments);
        });
    });
}

void CudaOps::enqueue(const op::ExcludeOwnValueBackward& a, Stream& stream) {
    using namespace own_value_cu;
    const int64_t chunks = column_chunks(a.dy.rows());
    const bool shared = a.alpha.rank != 2;
    float* const partial =
        shared ? static_cast<float*>(workspace(stream, chunks * a.alpha.numel() * int64_t{sizeof(float)}))
               : nullptr;
    cuda::with_real(a.dy.dtype, [&]<class Real>() {
        with_heads<Real>(a.dy, a.alpha, {a.d_o, a.dv, a.dy, a.o, a.v}, [&]<int W>(const HeadShape& shape) {
            const BackwardArguments<Real> arguments{Rows<Real>(a.d_o),
                                                    Rows<Real>(a.dv),
                                                    Rows<Real>(a.dy),
                                                    Rows<Real>(a.o),
                                                    Rows<Real>(a.v),
                                                    Alpha(a.alpha),
                                                    shared ? Rows<float>(Tensor()) : Rows<float>(a.dalpha),
                                                    partial,
                                                    shape,
                                                    a.accumulate_v,
                                                    a.accumulate_alpha};
            launch(exclude_own_value_backward_kernel<Real, W>,
                   dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(shape.heads)),
                   sizes::kRowThreads, kReduceSharedBytes, stream, arguments);
        });
    });
    if (shared)
        add_chunks(a.dalpha.as<float>(), nullptr, partial, chunks, 1, a.alpha.numel(), a.accumulate_alpha,
                   stream);
}

}  // namespace speedrun
