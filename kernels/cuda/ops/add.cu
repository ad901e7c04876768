// Sum of two tensors. Roofline bound, real of b bytes: 3·T·C·b. Legend: T rows, C columns; W elements per
// thread.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace add_cu {
namespace {

template <class Real>
struct Add {
    Rows<Real> y, x, z;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        Vector<W> a = chunk.load(x.at(row, col));
        const Vector<W> b = chunk.load(z.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) a[i] += b[i];
        chunk.store(y.at(row, col), a);
    }
};

}  // namespace
}  // namespace add_cu

void CudaOps::enqueue(const op::Add& a, Stream& stream) {
    using namespace add_cu;
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.y, a.x, a.z}), [&]<int W>() {
            map<W>(map_shape({a.y, a.x, a.z}), Add<Real>{Rows<Real>(a.y), Rows<Real>(a.x), Rows<Real>(a.z)},
                   stream);
        });
    });
}

}  // namespace speedrun
