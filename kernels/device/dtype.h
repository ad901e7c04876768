// Element types that tensors can have, and bf16 arithmetic for scalars.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace speedrun {

enum class DType : uint8_t { f32, bf16, i32 };

constexpr int64_t size_of(DType dtype) {
    return dtype == DType::bf16 ? 2 : 4;
}
constexpr std::string_view name_of(DType dtype) {
    return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "i32";
}

// bfloat16: the upper half of an IEEE binary32. Rounds to nearest even; a NaN stays a NaN.
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

}  // namespace speedrun
