// Initial values from Philox: one thread per aligned block of four elements of the parameter, for any start
// of the slice. Roofline bound: 4·n bytes written; limited by the generator's integer multiplications (10
// rounds per thread). Legend: n elements; x[i] is element offset+i of the parameter.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/device/philox.h"

namespace speedrun {

namespace random_cu {
namespace {

// Uniform in (0, 1): never 0, so that its logarithm is finite.
__device__ __forceinline__ float unit(uint32_t word) {
    return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-24f;
}

template <bool kNormal>
__global__ void __launch_bounds__(sizes::kMapThreads)
    random_kernel(float* x, int64_t count, int64_t offset, uint64_t seed, uint64_t sequence, float size) {
    wait_for_prior_kernels();
    const int64_t block = offset / 4 + int64_t{blockIdx.x} * sizes::kMapThreads + threadIdx.x;
    const int64_t first = 4 * block - offset;  // index of its first element in x; may be negative
    if (first >= count) return;
    const auto words = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                   static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                                  philox_key(seed));
    Vector<4> values;
    if constexpr (kNormal) {
        // Box & Muller 1958: words 0,1 give elements 0,1; words 2,3 give elements 2,3.
#pragma unroll
        for (int pair = 0; pair < 4; pair += 2) {
            const float radius = size * sqrtf(-2.0f * logf(unit(words[pair])));
            const float half_turns = 2.0f * unit(words[pair + 1]);
            values[pair] = radius * cospif(half_turns);
            values[pair + 1] = radius * sinpif(half_turns);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = size * (2.0f * unit(words[i]) - 1.0f);
    }
    if (first >= 0 && first + 4 <= count && reinterpret_cast<uintptr_t>(x + first) % 16 == 0) {
        store_vector<4>(x + first, values);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (first + i >= 0 && first + i < count) x[first + i] = values[i];
    }
}

template <bool kNormal>
void fill_random(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, float size, LaunchSite site) {
    const int64_t count = x.numel();
    if (count == 0) return;
    const int64_t blocks = (offset + count + 3) / 4 - offset / 4;
    launch(random_kernel<kNormal>, grid_of(blocks, sizes::kMapThreads), sizes::kMapThreads, 0, site,
           x.as<float>(), count, offset, seed, sequence, size);
}

}  // namespace
}  // namespace random_cu

void CudaOps::enqueue(const op::RandomNormal& a, Stream& stream) {
    using namespace random_cu;
    fill_random<true>(a.x, a.seed, a.sequence, a.offset, a.deviation, stream);
}

void CudaOps::enqueue(const op::RandomUniform& a, Stream& stream) {
    using namespace random_cu;
    fill_random<false>(a.x, a.seed, a.sequence, a.offset, a.bound, stream);
}

}  // namespace speedrun
