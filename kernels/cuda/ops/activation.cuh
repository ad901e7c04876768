// relu(x)², for the activation and for FP8 quantization.
#pragma once

#include "kernels/cuda/blocks/launch.h"

namespace speedrun {

__device__ __forceinline__ float relu_squared(float x) {
    return (x > 0.0f ? x : 0.0f) * x;  // not positive²: a NaN must not become 0
}

}  // namespace speedrun
