// Vectors of 16 floats in two AVX2 registers: the instructions behind simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/lanes.h"
#include "kernels/device/dtype.h"

namespace speedrun::cpu {

// One processor register. Tiles of sums are arrays of these: compilers keep them in registers, but store
// arrays of a class to memory.
using Register = __m256;
constexpr int kRegisterLanes = 8;
inline __attribute__((always_inline)) Register load_register(const float* p) {
    return _mm256_loadu_ps(p);
}
inline __attribute__((always_inline)) Register broadcast_register(float x) {
    return _mm256_set1_ps(x);
}
inline __attribute__((always_inline)) Register fma_register(Register a, Register b, Register c) {
    return _mm256_fmadd_ps(a, b, c);
}

// Selected lanes: the result of a comparison.
struct Mask {
    __m256 low, high;
};

struct Vec {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    Vec() = default;
    Vec(__m256 first, __m256 second) : low(first), high(second) {}
    Vec(float value) : low(_mm256_set1_ps(value)), high(low) {}
};

inline Vec operator+(Vec a, Vec b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec operator-(Vec a, Vec b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec operator*(Vec a, Vec b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec operator/(Vec a, Vec b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a·b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// c − a·b, rounded once.
inline Vec negated_fma(Vec a, Vec b, Vec c) {
    return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
// Lane by lane; returns the second operand if one is NaN.
inline Vec max(Vec a, Vec b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec min(Vec a, Vec b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Vec square_root(Vec v) {
    return {_mm256_sqrt_ps(v.low), _mm256_sqrt_ps(v.high)};
}
inline Vec magnitude(Vec v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
}
// Flips the sign of each lane whose bit is set; lane 0 is the lowest bit.
inline Vec flip_signs(Vec v, uint32_t bits) {
    const auto flip = [](__m256 x, uint32_t eight) {
        const __m256i to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        const __m256i moved = _mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int32_t>(eight)), to_sign);
        return _mm256_xor_ps(x, _mm256_and_ps(_mm256_castsi256_ps(moved), _mm256_set1_ps(-0.0f)));
    };
    return {flip(v.low, bits), flip(v.high, bits >> 8)};
}
// 2^n for whole n from −126 to 127, 0 for n = −127; `shifted` is n + kExponentShift.
inline Vec power_of_two(Vec shifted) {
    const auto power = [](__m256 x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
    };
    return {power(shifted.low), power(shifted.high)};
}
inline Mask operator<(Vec a, Vec b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
inline Mask operator<=(Vec a, Vec b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ)};
}
inline bool any(Mask condition) {
    return _mm256_movemask_ps(_mm256_or_ps(condition.low, condition.high)) != 0;
}
inline Mask is_nan(Vec v) {
    return {_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q), _mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q)};
}
inline Vec select(Mask condition, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.low, yes.low, condition.low),
            _mm256_blendv_ps(no.high, yes.high, condition.high)};
}
// Maximum of the lanes' bits as unsigned integers. For magnitudes it is the larger value, with NaN above
// infinity.
inline Vec max_bits(Vec a, Vec b) {
    const auto larger = [](__m256 x, __m256 y) {
        return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
    };
    return {larger(a.low, b.low), larger(a.high, b.high)};
}

inline Vec load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline Vec from_bf16(__m256i halves) {
    const auto wide = [](__m128i half) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    };
    return {wide(_mm256_castsi256_si128(halves)), wide(_mm256_extracti128_si256(halves, 1))};
}
inline Vec load(const Bf16* p) {
    return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(float* p, Vec v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}
inline __m256i to_bf16(Vec v) {
    const auto upper_half = [](__m256 x) {
        const __m256i u = _mm256_castps_si256(x), upper = _mm256_srli_epi32(u, 16);
        const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
        const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    };
    // The pack works on halves of a register: restores the order of the quarters.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(upper_half(v.low), upper_half(v.high)), 0xd8);
}
inline void store(Bf16* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v));
}

template <class Real>
Vec load(const Real* p, Part part) {
    Real lanes[kLanes] = {};
    std::memcpy(static_cast<void*>(lanes), p, part.count * sizeof(Real));
    return load(lanes);
}
template <class Real>
void store(Real* p, Vec v, Part part) {
    Real lanes[kLanes];
    store(lanes, v);
    std::memcpy(static_cast<void*>(p), lanes, part.count * sizeof(Real));
}
// v with invalid lanes set to 0.
inline Vec keep(Vec v, Part part) {
    float lanes[kLanes];
    store(lanes, v);
    return load(lanes, part);
}

// Vector v of a row of registers.
inline Vec vector_of(const Register* row, int v) {
    return {row[2 * v], row[2 * v + 1]};
}

struct Halves {
    __m256 low, high;
};
inline Halves halves(Vec v) {
    return {v.low, v.high};
}

}  // namespace speedrun::cpu
