// Product with a SiLU, forward and backward. Roofline bound, real of b bytes: forward 3·T·C·b, backward 5·T·C·b. Legend: T rows,
// C columns; W elements per thread.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace silu_product_cu {
namespace {

// If e^-x overflows to infinity, the quotient is 0.
__device__ __forceinline__ float logistic(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

template <class Real>
struct Forward {
    Rows<Real> y, gate, x;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const Vector<W> g = chunk.load(gate.at(row, col));
        Vector<W> v = chunk.load(x.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] *= g[i] * logistic(g[i]);
        chunk.store(y.at(row, col), v);
    }
};

template <class Real>
struct Backward {
    Rows<Real> dgate, dx, dy, gate, x;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const Vector<W> d = chunk.load(dy.at(row, col)), g = chunk.load(gate.at(row, col));
        Vector<W> of_gate = chunk.load(x.at(row, col)), of_x;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float s = logistic(g[i]);
            of_gate[i] *= d[i] * s * (1.0f + g[i] * (1.0f - s));
            of_x[i] = d[i] * g[i] * s;
        }
        chunk.store(dgate.at(row, col), of_gate);
        chunk.store(dx.at(row, col), of_x);
    }
};

template <template <class> class Body, class... Tensors>
void dispatch(Stream& stream, const Tensors&... tensors) {
    const Tensor operands[] = {tensors...};
    cuda::with_real(operands[0].dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {tensors...}), [&]<int W>() {
            map<W>(map_shape({tensors...}), Body<Real>{Rows<Real>(tensors)...}, stream);
        });
    });
}

}  // namespace
}  // namespace silu_product_cu

void CudaOps::enqueue(const op::SiluProductForward& a, Stream& stream) {
    using namespace silu_product_cu;
    dispatch<Forward>(stream, a.y, a.gate, a.x);
}

void CudaOps::enqueue(const op::SiluProductBackward& a, Stream& stream) {
    using namespace silu_product_cu;
    dispatch<Backward>(stream, a.dgate, a.dx, a.dy, a.gate, a.x);
}

}  // namespace speedrun
