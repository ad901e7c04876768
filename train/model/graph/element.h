// Element types of a graph's values and scratch.
#pragma once

#include <cstdint>

#include "kernels/device/dtype.h"

namespace speedrun {

enum class Element : uint8_t { compute_dtype, f32, ids, e4m3, e5m2 };  // ids: i32

constexpr DType dtype_of(Element element, DType compute_dtype) {
    constexpr DType kTypes[] = {DType::f32, DType::f32, DType::i32, DType::e4m3, DType::e5m2};
    return element == Element::compute_dtype ? compute_dtype : kTypes[static_cast<int>(element)];
}

}  // namespace speedrun
