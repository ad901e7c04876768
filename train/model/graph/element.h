// Element types of a graph's values and scratch.
#pragma once

#include <cstdint>

#include "kernels/device/dtype.h"

namespace speedrun {

enum class Element : uint8_t { real, f32, ids, e4m3, e5m2 };  // real: compute dtype; ids: i32

constexpr DType dtype_of(Element element, DType real) {
    constexpr DType kTypes[] = {DType::f32, DType::f32, DType::i32, DType::e4m3, DType::e5m2};
    return element == Element::real ? real : kTypes[static_cast<int>(element)];
}

}  // namespace speedrun
