#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

constexpr float kSqrt2OverPi = 0.7978845608f;
constexpr float kCubic = 0.044715f;

// tanh(√(2/π)·(x + 0.044715·x³)), of GELU's tanh form (Hendrycks & Gimpel 2016).
Vec inner_tanh(Vec x) {
    return cpu::tanh(x * fma(kSqrt2OverPi * kCubic * x, x, kSqrt2OverPi));
}

Vec value(Vec x, Activation activation) {
    if (activation == Activation::relu_squared) {
        return max(0.0f, x) * x;  // not max(0, x)²: a NaN must not become 0
    }
    return 0.5f * x * (1.0f + inner_tanh(x));
}

Vec derivative(Vec x, Activation activation) {
    if (activation == Activation::relu_squared) return 2.0f * max(0.0f, x);
    const Vec t = inner_tanh(x);
    const Vec slope = fma(3.0f * kSqrt2OverPi * kCubic * x, x, kSqrt2OverPi);  // of the argument of tanh
    return 0.5f * fma(x * slope, negated_fma(t, t, 1.0f), 1.0f + t);
}

}  // namespace

void CpuOps::activation_forward(Tensor y, Tensor x, Activation activation, Stream& stream) {
    expect(y, x.dtype, {x.rows(), x.cols()}, "activation y");
    cpu::submit(stream, "activation_forward", [=] {
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(x.rows(), [&](int64_t t) {
                const Real* in = x.as<Real>() + t * x.row_stride;
                Real* out = y.as<Real>() + t * y.row_stride;
                cpu::for_vectors(x.cols(), [&](int64_t i, auto width) {
                    cpu::store(out + i, value(cpu::load(in + i, width), activation), width);
                });
            });
        });
    });
}

void CpuOps::activation_backward(Tensor dx, Tensor dy, Tensor x, Activation activation, Stream& stream) {
    expect(dx, x.dtype, {x.rows(), x.cols()}, "activation dx");
    expect(dy, x.dtype, {x.rows(), x.cols()}, "activation dy");
    cpu::submit(stream, "activation_backward", [=] {
        cpu::with_real(x.dtype, [&]<class Real>() {
            cpu::parallel_for(x.rows(), [&](int64_t t) {
                const Real* in = x.as<Real>() + t * x.row_stride;
                const Real* upstream = dy.as<Real>() + t * dy.row_stride;
                Real* out = dx.as<Real>() + t * dx.row_stride;
                cpu::for_vectors(x.cols(), [&](int64_t i, auto width) {
                    const Vec slope = derivative(cpu::load(in + i, width), activation);
                    cpu::store(out + i, cpu::load(upstream + i, width) * slope, width);
                });
            });
        });
    });
}

}  // namespace speedrun
