// What the kernels of the loss share: exponentials, the softcap by its gap, and threads for a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "kernels/cuda/blocks/ptx.h"
#include "kernels/ops/loss.h"

namespace speedrun::loss {

// e^x, a rounding of x·log₂e away from it; 0 where that is not a normal number.
__device__ __forceinline__ float exp_approx(float x) {
    return ptx::exp2_approx(x * 1.4426950408889634f);
}
constexpr float kTwiceLog2E = 2.8853900817779268f;
// A softcap as the kernels take it, for a logit x: with g = 1/(e^(2(x + shift)/d) + 1), e^x may be infinite,
// c·tanh((x + shift)/d) = c·(1 − 2g), and its slope by x is c/d·4g·(1 − g). Without a cap: c = scale = 0 and slope 1.
struct Cap {
    float cap, scale, offset, slope;  // c, 2·log₂e/d, shift·scale, c/d

    explicit Cap(const Softcap& softcap)
        : cap(softcap.present() ? softcap.cap : 0.0f),
          scale(softcap.present() ? kTwiceLog2E / softcap.divisor() : 0.0f),
          offset(softcap.shift * scale),
          slope(softcap.slope()) {}
    __device__ __forceinline__ float gap(float x) const {
        return ptx::reciprocal_approx(ptx::exp2_approx(fmaf(x, scale, offset)) + 1.0f);
    }
};

// The least number of threads that go over a row in as few rounds as kLossThreads would.
inline int block_threads(int64_t chunks) {
    const int64_t rounds = std::max<int64_t>(1, (chunks + sizes::kLossThreads - 1) / sizes::kLossThreads);
    const int64_t threads = std::max<int64_t>(1, (chunks + rounds - 1) / rounds);
    return static_cast<int>((threads + sizes::kWarp - 1) / sizes::kWarp * sizes::kWarp);
}

}  // namespace speedrun::loss
