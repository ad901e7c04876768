#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

constexpr float kSqrt2OverPi = 0.7978845608f;
constexpr float kCubic = 0.044715f;

Vec value(Vec x, Activation activation) {
    if (activation == Activation::relu_squared) {
        const Vec positive = x > 0.0f ? x : Vec{};
        return positive * x;  // not positive²: a NaN must not become 0
    }
    return 0.5f * x * (1.0f + cpu::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}

Vec derivative(Vec x, Activation activation) {
    if (activation == Activation::relu_squared) return x > 0.0f ? 2.0f * x : Vec{};
    const Vec t = cpu::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
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
