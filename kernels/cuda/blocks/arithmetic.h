// Arithmetic by single PTX instructions, on f32 values and on pairs of bf16 in a word. Each function has a twin for the host executor.
#pragma once

#include "kernels/cuda/blocks/launch.h"
#include "kernels/device/dtype.h"

namespace speedrun::ptx {

#if SPEEDRUN_SIMT

inline float half_of(uint32_t pair, int index) {
    return std::bit_cast<float>(index ? pair & 0xffff0000u : pair << 16);
}

inline uint32_t pack_bf16(float low, float high) {
    return static_cast<uint32_t>(Bf16(high).bits) << 16 | Bf16(low).bits;
}

inline float exp2_approx(float x) {
    return std::exp2(x);
}

inline float reciprocal_approx(float x) {
    return 1.0f / x;
}

inline float sqrt_approx(float x) {
    return std::sqrt(x);
}

inline uint32_t larger_bf16(uint32_t a, uint32_t b) {
    const auto larger = [&](int i) { return half_of(a, i) > half_of(b, i) ? half_of(a, i) : half_of(b, i); };
    return pack_bf16(larger(0), larger(1));
}
inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    constexpr uint32_t kLow = 0xffffu;
    return std::max(a & ~kLow, b & ~kLow) | std::max(a & kLow, b & kLow);
}

inline float min_nan(float a, float b) {
    return b < a || std::isnan(b) ? b : a;
}
inline uint32_t min_nan_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(min_nan(half_of(a, 0), half_of(b, 0)), min_nan(half_of(a, 1), half_of(b, 1)));
}

// A product of bf16 values is exact in f32, and its sum with another one in f64.
inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    const auto of = [&](int i) {
        return static_cast<float>(double{half_of(a, i)} * double{half_of(b, i)} + double{half_of(c, i)});
    };
    return pack_bf16(of(0), of(1));
}

#else

// Two f32 rounded to bf16, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x within 2 ulp; 2^−∞ = 0.
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x within 1 ulp; 1/∞ = 0, as is that of |x| > 2^126.
__device__ inline float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// √x, relative error 2^-23; 0 below 2^-126.
__device__ inline float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Larger values of two pairs of bf16, b for a NaN in a; their products. Compute capability 9.0 and above.
__device__ inline uint32_t larger_bf16(uint32_t a, uint32_t b) {
    uint32_t larger = 0;
#if __CUDA_ARCH__ >= 900
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return larger;
}
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t products = 0;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return products;
}
// Larger of each unsigned 16-bit half; compute capability 9.0 and above.
__device__ inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    uint32_t larger = 0;
#if __CUDA_ARCH__ >= 900
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return larger;
}

// The smaller number; NaN if one is NaN.
__device__ inline float min_nan(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
// Pairs of bf16: as above, and a·b + c with one rounding.
__device__ inline uint32_t min_nan_bf16(uint32_t a, uint32_t b) {
    uint32_t y;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

#endif

}  // namespace speedrun::ptx
