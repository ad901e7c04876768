// Vectors of 16 floats: one register with AVX-512, two with AVX2, and the same values lane by lane in both.
// Loads and stores convert bf16 on the way, so that every kernel is written once for both element types, with
// f32 inside.
//
// The build never contracts a·b + c (-ffp-contract=off): what is to be rounded once says fma(a, b, c). So a
// loop gives the same bits with every compiler and at every instruction level.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/dtype.h"

namespace speedrun::cpu {

constexpr int64_t kLanes = 16;

// Which lanes: the result of a comparison.
struct Mask;

#ifdef __AVX512F__

// One register of the processor. Tiles of sums are arrays of these: compilers keep them in registers, where
// arrays of a class would pass through memory.
using Register = __m512;
constexpr int kRegisterLanes = 16;
inline Register load_register(const float* p) {
    return _mm512_loadu_ps(p);
}
inline Register broadcast_register(float x) {
    return _mm512_set1_ps(x);
}
inline Register fma_register(Register a, Register b, Register c) {
    return _mm512_fmadd_ps(a, b, c);
}

struct Mask {
    __mmask16 lanes;
};

struct Vec {
    __m512 r = _mm512_setzero_ps();
    Vec() = default;
    Vec(__m512 value) : r(value) {}  // NOLINT: a register is a vector
    Vec(float value) : r(_mm512_set1_ps(value)) {}
};

inline Vec operator+(Vec a, Vec b) {
    return _mm512_add_ps(a.r, b.r);
}
inline Vec operator-(Vec a, Vec b) {
    return _mm512_sub_ps(a.r, b.r);
}
inline Vec operator*(Vec a, Vec b) {
    return _mm512_mul_ps(a.r, b.r);
}
inline Vec operator/(Vec a, Vec b) {
    return _mm512_div_ps(a.r, b.r);
}
// a·b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a.r, b.r, c.r);
}
// c − a·b, rounded once.
inline Vec negated_fma(Vec a, Vec b, Vec c) {
    return _mm512_fnmadd_ps(a.r, b.r, c.r);
}
// The second operand where one is NaN.
inline Vec max(Vec a, Vec b) {
    return _mm512_max_ps(a.r, b.r);
}
inline Vec min(Vec a, Vec b) {
    return _mm512_min_ps(a.r, b.r);
}
inline Vec square_root(Vec v) {
    return _mm512_sqrt_ps(v.r);
}
inline Vec magnitude(Vec v) {
    return _mm512_abs_ps(v.r);
}
// 2^n for whole n from −126 to 127, 0 for n = −127; `shifted` is n + kExponentShift.
inline Vec power_of_two(Vec shifted) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.r), 23));
}
inline Mask operator<(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.r, b.r, _CMP_LT_OQ)};
}
inline Mask operator<=(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.r, b.r, _CMP_LE_OQ)};
}
inline Mask is_nan(Vec v) {
    return {_mm512_cmp_ps_mask(v.r, v.r, _CMP_UNORD_Q)};
}
inline Vec select(Mask condition, Vec yes, Vec no) {
    return _mm512_mask_blend_ps(condition.lanes, no.r, yes.r);
}
// The larger bits of each lane as unsigned numbers: of magnitudes the larger value, and a NaN before
// infinity.
inline Vec max_bits(Vec a, Vec b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.r), _mm512_castps_si512(b.r)));
}

inline Vec load(const float* p) {
    return _mm512_loadu_ps(p);
}
inline Vec from_bf16(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline Vec load(const Bf16* p) {
    return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(float* p, Vec v) {
    _mm512_storeu_ps(p, v.r);
}
inline __m256i to_bf16(Vec v) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v.r));
#else
    const __m512i u = _mm512_castps_si512(v.r), upper = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan(v).lanes, rounded, quiet));
#endif
}
inline void store(Bf16* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v));
}

#elif defined(__AVX2__) && defined(__FMA__)

using Register = __m256;
constexpr int kRegisterLanes = 8;
inline Register load_register(const float* p) {
    return _mm256_loadu_ps(p);
}
inline Register broadcast_register(float x) {
    return _mm256_set1_ps(x);
}
inline Register fma_register(Register a, Register b, Register c) {
    return _mm256_fmadd_ps(a, b, c);
}

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
// The second operand where one is NaN.
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
inline Mask is_nan(Vec v) {
    return {_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q), _mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q)};
}
inline Vec select(Mask condition, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.low, yes.low, condition.low),
            _mm256_blendv_ps(no.high, yes.high, condition.high)};
}
// The larger bits of each lane as unsigned numbers: of magnitudes the larger value, and a NaN before
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
    // The pack works in halves of a register: put the quarters back in order.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(upper_half(v.low), upper_half(v.high)), 0xd8);
}
inline void store(Bf16* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v));
}

#else
#error "kernels/cpu is compiled for AVX2 with FMA at least; CMakeLists.txt gives the flags of each level"
#endif

constexpr int kRegisters = kLanes / kRegisterLanes;  // of a vector
// Vector v of a row of registers.
inline Vec vector_of(const Register* row, int v) {
#ifdef __AVX512F__
    return row[v];
#else
    return {row[2 * v], row[2 * v + 1]};
#endif
}

// v as it is once it has been stored.
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
void store(Real* p, Vec v, Full) {
    store(p, v);
}
#ifdef __AVX512F__
inline __mmask16 lanes_below(int64_t count) {
    return count >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (count > 0 ? count : 0)) - 1u);
}
inline Vec load(const float* p, Part part) {
    return _mm512_maskz_loadu_ps(lanes_below(part.count), p);
}
inline Vec load(const Bf16* p, Part part) {
    return from_bf16(_mm256_maskz_loadu_epi16(lanes_below(part.count), p));
}
inline void store(float* p, Vec v, Part part) {
    _mm512_mask_storeu_ps(p, lanes_below(part.count), v.r);
}
inline void store(Bf16* p, Vec v, Part part) {
    _mm256_mask_storeu_epi16(p, lanes_below(part.count), to_bf16(v));
}
#else
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
#endif
// v with the lanes that are not real set to 0.
inline Vec keep(Vec v, Full) {
    return v;
}
inline Vec keep(Vec v, Part part) {
#ifdef __AVX512F__
    return _mm512_maskz_mov_ps(lanes_below(part.count), v.r);
#else
    float lanes[kLanes];
    store(lanes, v);
    return load(lanes, part);
#endif
}
// Calls body(i, width) for i = 0, 16, … < n.
template <class Body>
void for_vectors(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, Full{});
    if (i < n) body(i, Part{n - i});
}

// Sums in a fixed order (a tree: halves, quarters, eighths), so that a row's sum does not depend on who
// computes it.
inline float sum(Vec v) {
#ifdef __AVX512F__
    const __m256 low = _mm512_castps512_ps256(v.r);
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.r), 1));
#else
    const __m256 low = v.low, high = v.high;
#endif
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// NaN lanes may be lost.
inline float max_lane(Vec v) {
#ifdef __AVX512F__
    const __m256 low = _mm512_castps512_ps256(v.r);
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.r), 1));
#else
    const __m256 low = v.low, high = v.high;
#endif
    const __m256 eight = _mm256_max_ps(low, high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// A sum with this is rounded to a whole number, halves to even, that stands in its lowest bits with 127
// added: the bits of an exponent.
constexpr float kExponentShift = 12582912.0f + 127.0f;

// e^x, relative error below 3e-7: x = (n − r)·ln2 with |r| ≤ ½, the polynomial of degree 5 for 2^-r whose
// largest relative error is least (9e-8), times 2^n. Below e^-87.7, smaller than all normal numbers: 0. Above
// e^88: e^88. NaN in, NaN out.
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
