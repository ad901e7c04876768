#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

constexpr float kSqrt2OverPi = 0.7978845608f;
constexpr float kCubic = 0.044715f;

// GELU in its tanh form (Hendrycks & Gimpel 2016) is ½x·(1 + tanh(u)) with u = √(2/π)·(x + 0.044715·x³):
// x·σ(2u). This is e^-2u.
Vec inverse_odds(Vec x) {
    constexpr float kLinear = -2.0f * kSqrt2OverPi;
    return cpu::exp(x * fma(kLinear * kCubic * x, x, kLinear));
}

// Standard normal density φ(x) and Φ(x) = ½(1 + erf(x/√2)), absolute error below 2e-7: rational approximation
// of erf (Abramowitz & Stegun 1964, 7.1.26), which has e^(−x²/2) as a factor.
struct Normal {
    Vec density, below;
};
Normal normal_at(Vec x) {
    constexpr float kStep = 0.3275911f * 0.7071067812f, kDensity = 0.3989422804f;
    const Vec falling = cpu::exp(-0.5f * (x * x)), t = 1.0f / fma(kStep, magnitude(x), 1.0f);
    Vec p = 1.061405429f;
    p = fma(p, t, -1.453152027f);
    p = fma(p, t, 1.421413741f);
    p = fma(p, t, -0.284496736f);
    p = fma(p, t, 0.254829592f);
    const Vec tail = 0.5f * (p * t) * falling;  // Φ(−|x|)
    return {kDensity * falling, select(x > 0.0f, 1.0f - tail, tail)};
}

Vec value(Vec x, Activation activation) {
    if (activation == Activation::relu_squared) return max(0.0f, x) * x;  // not max(0, x)²: keeps a NaN
    if (activation == Activation::gelu_erf) return x * normal_at(x).below;
    return x / (1.0f + inverse_odds(x));
}

// saved: as in op::ActivationBackward. In f32 the root of relu(x)² is exact: below |x| = 2^-63 the square loses bits,
// below 2^-75 it is 0.
Vec derivative(Vec saved, Activation activation) {
    if (activation == Activation::relu_squared) return 2.0f * square_root(saved);
    const Vec x = saved;
    if (activation == Activation::gelu_erf) {
        const Normal normal = normal_at(x);
        return fma(x, normal.density, normal.below);
    }
    constexpr float kLinear = 2.0f * kSqrt2OverPi;
    const Vec odds = inverse_odds(x), sigmoid = 1.0f / (1.0f + odds);
    const Vec slope = fma(3.0f * kLinear * kCubic * x, x, kLinear);  // d(2u)/dx
    return sigmoid * fma(x * slope, odds * sigmoid, 1.0f);           // σ + x·slope·σ·(1 − σ)
}

}  // namespace

void CpuOps::enqueue(const op::ActivationForward& a, Stream& stream) {
    cpu::submit(stream, "activation_forward", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::parallel_for(a.x.rows(), [&](int64_t t) {
                const Real* in = a.x.as<Real>() + t * a.x.row_stride;
                Real* out = a.y.as<Real>() + t * a.y.row_stride;
                cpu::for_vectors(a.x.cols(), [&](int64_t i, auto width) {
                    cpu::store(out + i, value(cpu::load(in + i, width), a.activation), width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::ActivationBackward& a, Stream& stream) {
    cpu::submit(stream, "activation_backward", [=] {
        cpu::with_real(a.dx.dtype, [&]<class Real>() {
            cpu::parallel_for(a.dx.rows(), [&](int64_t t) {
                const Real* in = a.saved.as<Real>() + t * a.saved.row_stride;
                const Real* upstream = a.dy.as<Real>() + t * a.dy.row_stride;
                Real* out = a.dx.as<Real>() + t * a.dx.row_stride;
                cpu::for_vectors(a.dx.cols(), [&](int64_t i, auto width) {
                    const Vec slope = derivative(cpu::load(in + i, width), a.activation);
                    cpu::store(out + i, cpu::load(upstream + i, width) * slope, width);
                });
            });
        });
    });
}

}  // namespace speedrun
