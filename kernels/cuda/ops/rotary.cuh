// Backward of QK-norm and rotary for elements of a head's vector. The gradient g of the output u becomes rstd·(g − mean(g·u)·u),
// rotated by the negative angle. Rotation preserves inner products, so the mean needs no rotation.
#pragma once

#include "kernels/cuda/blocks/launch.h"

namespace speedrun::rotary {

__device__ __forceinline__ float add_product(float g, float u, float sum) {
    return fmaf(g, u, sum);
}

// mean: of g·u.
__device__ __forceinline__ float without_projection(float g, float u, float mean) {
    return fmaf(-mean, u, g);
}

// Elements i and i + D/2.
struct Pair {
    float first, second;
};
__device__ __forceinline__ Pair rotated_back(float first, float second, float cosine, float sine) {
    return {fmaf(second, sine, first * cosine), fmaf(-first, sine, second * cosine)};
}

}  // namespace speedrun::rotary
