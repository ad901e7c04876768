// Sums and maxima over a warp and a block. The order depends only on the number of threads.
#pragma once

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "kernels/cuda/blocks/launch.h"

namespace speedrun {

// Bytes of shared memory that a block-wide reduction uses at its offset.
constexpr int64_t kReduceSharedBytes = sizes::kWarp * 4;

__device__ __forceinline__ int lane_index() {
    return static_cast<int>(threadIdx.x) % sizes::kWarp;
}
__device__ __forceinline__ int warp_index() {
    return static_cast<int>(threadIdx.x) / sizes::kWarp;
}

// Reduces over aligned groups of `width` lanes (a power of two). All lanes of the warp call it; each receives
// its group's sum. The butterfly adds the same pairs in every lane, so all lanes hold the same bits.
template <class T>
__device__ __forceinline__ T group_sum(T value, int width) {
    for (int bit = width / 2; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int bit = sizes::kWarp / 2; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}
__device__ __forceinline__ float larger(float a, float b) {
    return fmaxf(a, b);  // fmaxf ignores a NaN
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
template <class T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
    for (int bit = sizes::kWarp / 2; bit > 0; bit /= 2)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, bit));
    return value;
}
// |x| as bits. Their integer order is the order of values, with NaN above infinity: no maximum loses it.
__device__ __forceinline__ uint32_t magnitude_bits(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}
// amax = max(amax, largest) over all warps, bits of non-negative values. A maximum does not depend on the order. Most
// warps read a larger value and skip the atomic; if the value read is stale, the atomic decides.
__device__ __forceinline__ void note_amax(uint32_t* amax, uint32_t largest) {
    largest = warp_max(largest);
    if (lane_index() == 0 && largest > *static_cast<const volatile uint32_t*>(amax)) atomicMax(amax, largest);
}

// Reduce over all threads of a one-dimensional block of whole warps; every thread receives the result.
// block_sum may follow another reduction. Before block_max no thread may still read these bytes of shared
// memory.
__device__ inline float block_sum(float value, int64_t shared_offset = 0) {
    const auto partial = shared_memory<float>(shared_offset, sizes::kWarp);
    value = warp_sum(value);
    __syncthreads();  // an earlier reduction may still be reading
    if (lane_index() == 0) partial[warp_index()] = value;
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) / sizes::kWarp;
    return warp_sum(lane_index() < warps ? partial[lane_index()] : 0.0f);
}
template <class T>
__device__ inline T block_max(T value, int64_t shared_offset = 0) {
    const auto partial = shared_memory<T>(shared_offset, sizes::kWarp);
    value = warp_max(value);
    if (lane_index() == 0) partial[warp_index()] = value;
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) / sizes::kWarp;
    return warp_max(lane_index() < warps ? partial[lane_index()] : partial[0]);
}

}  // namespace speedrun
