// relu(x)² and its derivative, for the activation and for epilogues of matmuls.
#pragma once

#include "kernels/cuda/blocks/ptx.h"

namespace speedrun {

__device__ __forceinline__ float relu_squared(float x) {
    return (x > 0.0f ? x : 0.0f) * x;  // not positive²: a NaN must not become 0
}

// The derivative 2·relu(x) from y = relu(x)² of type Real. In f32 the root is correctly rounded, so that it is exact for
// |x| from 2^-63 on. A bf16 y has a relative error of 2^-9, of which the derivative has half.
template <class Real>
__device__ __forceinline__ float relu_squared_slope(float y) {
    if constexpr (std::is_same_v<Real, Bf16>) return 2.0f * ptx::sqrt_approx(y);
    return 2.0f * sqrtf(y);
}

}  // namespace speedrun
