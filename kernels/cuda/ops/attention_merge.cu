// Attention over further keys, taken into that over the keys before. Floor, real of b bytes: T·H·D·(8 + b), T·H·D·(4 + b)
// at first; log-sums come on top with 4 bytes for each head of a row. Legend: T rows, H heads of D columns; W elements that
// a thread handles, of one head.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace attention_merge_cu {
namespace {

template <class Real>
struct MergeAttention {
    Rows<float> sum;
    Rows<const Real> o;
    float* lse;
    const float *lse_before, *lse_of_o;  // [H,T]; before: null
    int64_t rows;
    int head_dim;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const int64_t head = col / head_dim, at = head * rows + row;
        const float before = lse_before ? lse_before[at] : -INFINITY, added = lse_of_o[at],
                    top = fmaxf(before, added);
        const float relative = top == -INFINITY ? 0.0f : top;  // no key at all: both exponentials are 0
        const float weight_before = expf(before - relative), weight_added = expf(added - relative),
                    total = weight_before + weight_added, scale = total == 0.0f ? 0.0f : 1.0f / total;
        if (col == head * head_dim) lse[at] = relative + logf(total);
        Vector<W> x = chunk.load(o.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) x[i] *= scale * weight_added;
        if (lse_before) {
            const Vector<W> y = chunk.load(sum.at(row, col));
#pragma unroll
            for (int i = 0; i < W; ++i) x[i] = fmaf(scale * weight_before, y[i], x[i]);
        }
        chunk.store(sum.at(row, col), x);
    }
};

}  // namespace
}  // namespace attention_merge_cu

void CudaOps::enqueue(const op::MergeAttention& a, Stream& stream) {
    using namespace attention_merge_cu;
    const int64_t rows = a.o.rows(), cols = a.o.cols(), head_dim = cols / a.lse.rows();
    cuda::with_real(a.o.dtype, [&]<class Real>() {
        const bool whole = head_dim % kVectorWidth<Real> == 0;  // no chunk has columns of two heads
        cuda::with_width<Real>(whole && aligned_rows(kVectorWidth<Real>, {a.sum, a.o}), [&]<int W>() {
            map<W>({rows, cols},
                   MergeAttention<Real>{Rows<float>(a.sum), Rows<const Real>(a.o), a.lse.as<float>(),
                                        a.lse_before.as<float>(), a.lse_of_o.as<float>(), rows,
                                        static_cast<int>(head_dim)},
                   stream);
        });
    });
}

}  // namespace speedrun
