// Vectors of 16 floats: one register with AVX-512, two with AVX2, with the same values lane by lane in both.
// Loads and stores convert bf16, so every kernel is written once for both element types, with f32 inside.
// This file has the code common to all levels; simd_avx512.h and simd_avx2.h define the same names with their
// own instructions.
//
// The build never contracts a·b + c (-ffp-contract=off): fma(a, b, c) is explicit. So a loop gives the same
// bits with every compiler and at every instruction level.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lanes.h"
#include "kernels/device/dtype.h"

#if defined(__AVX512F__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "kernels/cpu/simd_avx2.h"
#else
#error "kernels/cpu is compiled for AVX2 with FMA at least; CMakeLists.txt gives the flags of each level"
#endif

namespace speedrun::cpu {

constexpr int kRegisters = kLanes / kRegisterLanes;  // registers of a vector

// v rounded to the storage type.
template <class Real>
inline Vec rounded_to(Vec v) {
    if constexpr (std::is_same_v<Real, Bf16>) return from_bf16(to_bf16(v));
    return v;
}

inline Vec& operator+=(Vec& a, Vec b) {
    return a = a + b;
}
inline Vec& operator*=(Vec& a, Vec b) {
    return a = a * b;
}
inline Mask operator>(Vec a, Vec b) {
    return b < a;
}
inline Mask operator>=(Vec a, Vec b) {
    return b <= a;
}

template <class Real>
Vec load(const Real* p, Full) {
    return load(p);
}
template <class Real>
void store(Real* p, Vec v, Full) {
    store(p, v);
}
inline Vec keep(Vec v, Full) {
    return v;
}
// Calls body(i, width) for i = 0, 16, … < n.
template <class Body>
void for_vectors(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, Full{});
    if (i < n) body(i, Part{n - i});
}

// Sums in a fixed order (a tree: halves, quarters, eighths), so a row's sum does not depend on the thread
// that computes it.
inline float sum(Vec v) {
    const auto [low, high] = halves(v);
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// NaN lanes may be lost.
inline float max_lane(Vec v) {
    const auto [low, high] = halves(v);
    const __m256 eight = _mm256_max_ps(low, high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Adding this rounds to an integer, halves to even. Its lowest bits then hold the integer plus 127: the bits
// of an exponent.
constexpr float kExponentShift = 12582912.0f + 127.0f;

// e^x, relative error below 3e-7: x = (n − r)·ln2 with
// r
// ≤ ½, minimax polynomial of degree 5 for 2^-r (error 9e-8), times 2^n. Below e^-87.7, smaller than all
// normal numbers: 0. Above e^88: e^88. NaN in, NaN out.
inline Vec exp(Vec x) {
    constexpr float kLog2E = 1.44269502f, kLog2ERest = 1.92596299e-8f;
    const Vec clamped = min(88.0f, max(-88.0f, x));  // a NaN stays
    const Vec shifted = fma(clamped, kLog2E, kExponentShift), n = shifted - kExponentShift;
    const Vec r = negated_fma(clamped, kLog2ERest, negated_fma(clamped, kLog2E, n));
    Vec p = -1.32647286e-3f;
    p = fma(p, r, 9.67151372e-3f);
    p = fma(p, r, -5.55073375e-2f);
    p = fma(p, r, 2.40222421e-1f);
    p = fma(p, r, -6.93146978e-1f);
    p = fma(p, r, 1.0f);
    return p * power_of_two(shifted);
}

// tanh, absolute error below 2e-7. NaN in, NaN out.
inline Vec tanh(Vec x) {
    const Vec e = exp(2.0f * min(20.0f, max(-20.0f, x)));
    return 1.0f - 2.0f / (e + 1.0f);
}

}  // namespace speedrun::cpu
