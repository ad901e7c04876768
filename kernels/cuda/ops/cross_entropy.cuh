// What the kernels of the loss share: exponentials, the softcap by its gap, and threads for a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "kernels/cuda/blocks/ptx.h"

namespace speedrun::loss {

// e^x, a rounding of x·log₂e away from it; 0 where that is not a normal number.
__device__ __forceinline__ float exp_approx(float x) {
    return ptx::exp2_approx(x * 1.4426950408889634f);
}
// 2·log₂e/c, by which cap_gap takes logits.
constexpr float kTwiceLog2E = 2.8853900817779268f;
// g = 1/(e^(2z/c) + 1) of a logit, for c·tanh(z/c) = c·(1 − 2g); e^x may be infinite. scale: kTwiceLog2E/c, 0 where there is no cap.
__device__ __forceinline__ float cap_gap(float z, float scale) {
    return ptx::reciprocal_approx(ptx::exp2_approx(z * scale) + 1.0f);
}

// The least number of threads that go over a row in as few rounds as kLossThreads would.
inline int block_threads(int64_t chunks) {
    const int64_t rounds = std::max<int64_t>(1, (chunks + sizes::kLossThreads - 1) / sizes::kLossThreads);
    const int64_t threads = std::max<int64_t>(1, (chunks + rounds - 1) / rounds);
    return static_cast<int>((threads + sizes::kWarp - 1) / sizes::kWarp * sizes::kWarp);
}

}  // namespace speedrun::loss
