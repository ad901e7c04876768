// Element types of tensors, and scalar arithmetic of the narrow ones.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace speedrun {

enum class DType : uint8_t { f32, bf16, i32, e4m3, e5m2 };

constexpr bool is_fp8(DType dtype) {
    return dtype == DType::e4m3 || dtype == DType::e5m2;
}
constexpr int64_t size_of(DType dtype) {
    return dtype == DType::bf16 ? 2 : is_fp8(dtype) ? 1 : 4;
}
constexpr std::string_view name_of(DType dtype) {
    constexpr std::string_view kNames[] = {"f32", "bf16", "i32", "e4m3", "e5m2"};
    return kNames[static_cast<int>(dtype)];
}

// bfloat16: the upper half of an IEEE binary32. Rounds to nearest even; NaN stays NaN.
struct Bf16 {
    uint16_t bits;

    Bf16() = default;
    explicit Bf16(float value) {
        uint32_t u = std::bit_cast<uint32_t>(value);
        const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Bf16) == 2);

// FP8 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1): sign, exponent, mantissa. Rounds
// to nearest even and saturates to the largest finite value ("satfinite" of the PTX ISA). NaN becomes 0x7f.
template <int kMantissa, int kBias, uint32_t kLargestBits>
struct Fp8 {
    uint8_t bits;

    static constexpr float kLargest = std::bit_cast<float>(kLargestBits);

    Fp8() = default;
    explicit Fp8(float value) {
        const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7fffffffu;
        const float x = std::bit_cast<float>(magnitude < kLargestBits ? magnitude : kLargestBits);
        // Spacing of FP8 values with x's exponent, or of the smallest normal ones. Adding 2^23 times this
        // spacing rounds off finer bits.
        const uint32_t exponent = std::bit_cast<uint32_t>(x) & 0x7f800000u;
        const uint32_t power = exponent > kSmallest ? exponent : kSmallest;
        const float unit = std::bit_cast<float>(power + ((23u - kMantissa) << 23));
        const float rounded = (x + unit) - unit;
        const uint32_t r = std::bit_cast<uint32_t>(rounded);
        const uint32_t normal = (r >> (23 - kMantissa)) - ((127u - kBias) << kMantissa);
        const float small = r < kSmallest ? rounded : 0.0f;
        const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(small / kUnit));
        const uint32_t number = r >= kSmallest ? normal : subnormal;
        bits = static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : number | (u >> 24 & 0x80u));
    }
    operator float() const {
        const uint32_t magnitude = bits & 0x7fu, sign = static_cast<uint32_t>(bits & 0x80u) << 24;
        const float subnormal = static_cast<float>(magnitude) * kUnit;
        uint32_t u = (magnitude << (23 - kMantissa)) + ((127u - kBias) << 23);
        if (magnitude >> kMantissa == 0) u = std::bit_cast<uint32_t>(subnormal);
        if (magnitude > kFinite) u = kMantissa == 2 && magnitude == kFinite + 1 ? 0x7f800000u : 0x7fc00000u;
        return std::bit_cast<float>(u | sign);
    }

  private:
    static constexpr uint32_t kSmallest = (128u - kBias) << 23;  // smallest normal value, as f32
    static constexpr float kUnit =
        1.0f / static_cast<float>(1 << (kBias - 1 + kMantissa));  // spacing of subnormal values
    static constexpr uint32_t kFinite = (kLargestBits >> (23 - kMantissa)) - ((127u - kBias) << kMantissa);
};
struct E4m3 : Fp8<3, 7, 0x43e00000u> {  // up to 448, without infinities
    using Fp8::Fp8;
};
struct E5m2 : Fp8<2, 15, 0x47600000u> {  // up to 57344
    using Fp8::Fp8;
};
static_assert(sizeof(E4m3) == 1 && E4m3::kLargest == 448.0f && E5m2::kLargest == 57344.0f);

constexpr float largest_of(DType fp8) {
    return fp8 == DType::e4m3 ? E4m3::kLargest : E5m2::kLargest;
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
    return DType::f32;
}
template <>
constexpr DType dtype_of<Bf16>() {
    return DType::bf16;
}
template <>
constexpr DType dtype_of<int32_t>() {
    return DType::i32;
}
template <>
constexpr DType dtype_of<E4m3>() {
    return DType::e4m3;
}
template <>
constexpr DType dtype_of<E5m2>() {
    return DType::e5m2;
}

}  // namespace speedrun
