#include <cmath>
#include <numbers>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/device/philox.h"

namespace speedrun {

namespace {

// The four 32-bit words that elements 4·block … 4·block+3 of a parameter draw from.
std::array<uint32_t, 4> words_of(uint64_t seed, uint64_t sequence, uint64_t block) {
    return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                       static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// (0, 1): never 0, so that its logarithm is finite.
float unit(uint32_t word) {
    return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-24f;
}

// Fills x from sample(words, lane), lane 0 to 3 of a block of four elements.
template <class Sample>
void fill_random(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, Sample&& sample) {
    float* out = x.as<float>();
    const int64_t count = x.numel();
    cpu::parallel_for((count + cpu::kBlock - 1) / cpu::kBlock, [&](int64_t block) {
        const int64_t begin = block * cpu::kBlock, end = std::min(begin + cpu::kBlock, count);
        std::array<uint32_t, 4> words{};
        int64_t have = -1;
        for (int64_t i = begin; i < end; ++i) {
            const int64_t element = offset + i;
            if (element / 4 != have) {
                have = element / 4;
                words = words_of(seed, sequence, static_cast<uint64_t>(have));
            }
            out[i] = sample(words, static_cast<int>(element % 4));
        }
    });
}

}  // namespace

void CpuOps::random_normal(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, float deviation,
                           Stream& stream) {
    expect(x, DType::f32, {x.numel()}, "random_normal x");
    cpu::submit(stream, "random_normal", [=] {
        fill_random(x, seed, sequence, offset, [=](const std::array<uint32_t, 4>& words, int lane) {
            // Box & Muller 1958: words 0,1 give elements 0,1; words 2,3 give elements 2,3.
            const int pair = lane & ~1;
            const float radius = deviation * std::sqrt(-2.0f * std::log(unit(words[pair])));
            const float angle = 2.0f * std::numbers::pi_v<float> * unit(words[pair + 1]);
            return radius * (lane & 1 ? std::sin(angle) : std::cos(angle));
        });
    });
}

void CpuOps::random_uniform(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, float bound,
                            Stream& stream) {
    expect(x, DType::f32, {x.numel()}, "random_uniform x");
    cpu::submit(stream, "random_uniform", [=] {
        fill_random(x, seed, sequence, offset, [=](const std::array<uint32_t, 4>& words, int lane) {
            return bound * (2.0f * unit(words[lane]) - 1.0f);
        });
    });
}

}  // namespace speedrun
