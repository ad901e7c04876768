// 16-lane float vectors in the compiler's own vector extension: on AVX-512 one register, elsewhere several.
// Loads and stores convert bf16 on the way, so that every kernel is written once for both element types, with
// f32 inside.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "kernels/device/dtype.h"

namespace speedrun::cpu {

constexpr int64_t kLanes = 16;

using Vec = float __attribute__((vector_size(64)));
using IntVec = int32_t __attribute__((vector_size(64)));
using UintVec = uint32_t __attribute__((vector_size(64)));
using HalfVec = uint16_t __attribute__((vector_size(32)));

inline Vec broadcast(float x) {
    return Vec{} + x;
}

inline Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Vec load(const Bf16* p) {
    HalfVec h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<Vec>(__builtin_convertvector(h, UintVec) << 16);
}
inline void store(float* p, Vec v) {
    std::memcpy(p, &v, sizeof v);
}
inline void store(Bf16* p, Vec v) {
#ifdef __AVX512BF16__
    const __m256bh h = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
#else
    const UintVec u = reinterpret_cast<UintVec>(v);
    const UintVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const UintVec quiet = (u >> 16) | 0x40u;
    const HalfVec h = __builtin_convertvector(v == v ? rounded : quiet, HalfVec);
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
#endif
}

// How much of a vector is real: all of it, or the first `count` lanes at the end of a row (the rest loads as
// 0).
struct Full {};
struct Part {
    int64_t count;
};
template <class Real>
Vec load(const Real* p, Full) {
    return load(p);
}
template <class Real>
Vec load(const Real* p, Part part) {
    Real lanes[kLanes] = {};
    std::memcpy(static_cast<void*>(lanes), p, part.count * sizeof(Real));
    return load(lanes);
}
template <class Real>
void store(Real* p, Vec v, Full) {
    store(p, v);
}
template <class Real>
void store(Real* p, Vec v, Part part) {
    Real lanes[kLanes];
    store(lanes, v);
    std::memcpy(static_cast<void*>(p), lanes, part.count * sizeof(Real));
}
// v with the lanes that are not real set to 0.
inline Vec keep(Vec v, Full) {
    return v;
}
inline Vec keep(Vec v, Part part) {
    const IntVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lane < static_cast<int32_t>(part.count) ? v : Vec{};
}
// Calls body(i, width) for i = 0, 16, … < n.
template <class Body>
void for_vectors(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, Full{});
    if (i < n) body(i, Part{n - i});
}

inline Vec select(IntVec condition, Vec yes, Vec no) {
    return condition ? yes : no;
}
inline Vec max(Vec a, Vec b) {
    return a > b ? a : b;
}
inline Vec min(Vec a, Vec b) {
    return a < b ? a : b;
}

// Sums in a fixed order (a tree), so that a row's sum does not depend on who computes it.
inline float sum(Vec v) {
    using Vec8 = float __attribute__((vector_size(32)));
    using Vec4 = float __attribute__((vector_size(16)));
    const Vec8 low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    const Vec8 high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    const Vec8 eight = low + high;
    const Vec4 four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
inline float max_lane(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    float best = lanes[0];
    for (float lane : lanes) best = lane > best ? lane : best;
    return best;
}

// e^x, relative error below 3e-7: x = n·ln2 + r with |r| ≤ ln2/2, the Taylor polynomial of degree 6 in r (its
// remainder is below r⁷/5040 = 1.2e-7), times 2^n. Below the normal range: 0. NaN in, NaN out.
inline Vec exp(Vec x) {
    const IntVec underflow = x < -87.0f;
    const Vec clamped = x > 88.0f ? broadcast(88.0f) : (underflow ? broadcast(0.0f) : x);
    const Vec shifted =
        clamped * 1.44269504f + 12582912.0f;  // 1.5·2^23: rounds to an integer in the low bits
    const Vec n = shifted - 12582912.0f;
    Vec r = clamped - n * 0.693359375f;  // ln2 in two parts, the first exact in few bits
    r = r + n * 2.12194440e-4f;
    Vec p = broadcast(1.0f / 720.0f);
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const IntVec exponent = (reinterpret_cast<IntVec>(shifted) - 0x4b400000 + 127) << 23;
    const Vec result = p * reinterpret_cast<Vec>(exponent);
    return underflow ? broadcast(0.0f) : (x == x ? result : x);
}

// tanh, absolute error below 2e-7.
inline Vec tanh(Vec x) {
    const Vec bounded = min(max(x, broadcast(-20.0f)), broadcast(20.0f));
    const Vec e = exp(2.0f * bounded);
    const Vec result = 1.0f - 2.0f / (e + 1.0f);
    return x == x ? result : x;
}

}  // namespace speedrun::cpu
