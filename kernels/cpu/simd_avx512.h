// Vectors of 16 floats in one AVX-512 register: the instructions behind simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/lanes.h"
#include "kernels/device/dtype.h"

namespace speedrun::cpu {

// One processor register. Tiles of sums are arrays of these: compilers keep them in registers, but store
// arrays of a class to memory.
using Register = __m512;
constexpr int kRegisterLanes = 16;
inline __attribute__((always_inline)) Register load_register(const float* p) {
    return _mm512_loadu_ps(p);
}
inline __attribute__((always_inline)) Register broadcast_register(float x) {
    return _mm512_set1_ps(x);
}
inline __attribute__((always_inline)) Register fma_register(Register a, Register b, Register c) {
    return _mm512_fmadd_ps(a, b, c);
}

// Selected lanes: the result of a comparison.
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
// Lane by lane; returns the second operand if one is NaN.
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
// Flips the sign of each lane whose bit is set; lane 0 is the lowest bit.
inline Vec flip_signs(Vec v, uint32_t bits) {
    const __m512i x = _mm512_castps_si512(v.r);
    return _mm512_castsi512_ps(
        _mm512_mask_xor_epi32(x, static_cast<__mmask16>(bits), x, _mm512_set1_epi32(INT32_MIN)));
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
inline bool any(Mask condition) {
    return condition.lanes != 0;
}
inline Mask is_nan(Vec v) {
    return {_mm512_cmp_ps_mask(v.r, v.r, _CMP_UNORD_Q)};
}
inline Vec select(Mask condition, Vec yes, Vec no) {
    return _mm512_mask_blend_ps(condition.lanes, no.r, yes.r);
}
// Maximum of the lanes' bits as unsigned integers. For magnitudes it is the larger value, with NaN above
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
// v with invalid lanes set to 0.
inline Vec keep(Vec v, Part part) {
    return _mm512_maskz_mov_ps(lanes_below(part.count), v.r);
}

// Vector v of a row of registers.
inline Vec vector_of(const Register* row, int v) {
    return row[v];
}

struct Halves {
    __m256 low, high;
};
inline Halves halves(Vec v) {
    return {_mm512_castps512_ps256(v.r), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.r), 1))};
}

}  // namespace speedrun::cpu
