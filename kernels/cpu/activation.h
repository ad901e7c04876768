// relu(x)² of a scalar or a vector.
#pragma once

#include <algorithm>

namespace speedrun::cpu {

template <class T>
T relu_squared(T x) {
    using std::max;
    return max(T(0.0f), x) * x;  // not max(0, x)²: a NaN must not become 0
}

}  // namespace speedrun::cpu
