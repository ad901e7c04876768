// ReLU² and GELU, forward and backward.
// Roofline bound, real of b bytes: forward 2·T·C·b (x read, y written), backward 3·T·C·b. Legend: T rows, C
// columns; W elements per thread.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/activation.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace activation_cu {
namespace {

constexpr float kSqrt2OverPi = 0.7978845608f;
constexpr float kCubic = 0.044715f;

// tanh with an absolute error of about 2e-7, from one exponential and one division. If e^2x overflows to
// infinity, the quotient is 0.
__device__ __forceinline__ float tanh_of(float x) {
    return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}

// Normal distribution function Φ(x), by erfc: ½(1 + erf) would cancel for x far below 0.
__device__ __forceinline__ float normal_below(float x) {
    return 0.5f * erfcf(-0.7071067812f * x);
}

template <Activation kActivation>
__device__ __forceinline__ float value(float x) {
    if constexpr (kActivation == Activation::relu_squared) {
        return relu_squared(x);
    } else if constexpr (kActivation == Activation::gelu_erf) {
        return x * normal_below(x);
    } else {
        return 0.5f * x * (1.0f + tanh_of(kSqrt2OverPi * (x + kCubic * x * x * x)));
    }
}

// x: of type Real, ActivationBackward::saved.
template <class Real, Activation kActivation>
__device__ __forceinline__ float derivative(float x) {
    if constexpr (kActivation == Activation::relu_squared) {
        return relu_squared_slope<Real>(x);
    } else if constexpr (kActivation == Activation::gelu_erf) {
        constexpr float kDensity = 0.3989422804f;
        return normal_below(x) + x * kDensity * __expf(-0.5f * x * x);
    } else {
        const float t = tanh_of(kSqrt2OverPi * (x + kCubic * x * x * x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
    }
}

template <class Real, Activation kActivation>
struct Forward {
    Rows<Real> y, x;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        Vector<W> v = chunk.load(x.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] = value<kActivation>(v[i]);
        chunk.store(y.at(row, col), v);
    }
};

template <class Real, Activation kActivation>
struct Backward {
    Rows<Real> dx, dy, saved;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const Vector<W> v = chunk.load(saved.at(row, col));
        Vector<W> d = chunk.load(dy.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) d[i] *= derivative<Real, kActivation>(v[i]);
        chunk.store(dx.at(row, col), d);
    }
};

template <template <class, Activation> class Body, class... Tensors>
void dispatch(Activation activation, Stream& stream, Tensor first, Tensors... others) {
    cuda::with_real(first.dtype, [&]<class Real>() {
        const bool aligned = aligned_rows(kVectorWidth<Real>, {first, others...});
        cuda::with_width<Real>(aligned, [&]<int W>() {
            const MapShape shape = map_shape({first, others...});
            const auto run = [&]<Activation kActivation>() {
                map<W>(shape, Body<Real, kActivation>{Rows<Real>(first), Rows<Real>(others)...}, stream);
            };
            switch (activation) {
                case Activation::relu_squared:
                    return run.template operator()<Activation::relu_squared>();
                case Activation::gelu_tanh:
                    return run.template operator()<Activation::gelu_tanh>();
                case Activation::gelu_erf:
                    return run.template operator()<Activation::gelu_erf>();
            }
        });
    });
}

}  // namespace
}  // namespace activation_cu

void CudaOps::enqueue(const op::ActivationForward& a, Stream& stream) {
    using namespace activation_cu;
    dispatch<Forward>(a.activation, stream, a.y, a.x);
}

void CudaOps::enqueue(const op::ActivationBackward& a, Stream& stream) {
    using namespace activation_cu;
    dispatch<Backward>(a.activation, stream, a.dx, a.dy, a.saved);
}

}  // namespace speedrun
