#include <cmath>
#include <numbers>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/device/philox.h"

namespace speedrun {

namespace {

// The four random 32-bit words for elements 4·block … 4·block+3 of a parameter.
std::array<uint32_t, 4> words_of(uint64_t seed, uint64_t sequence, uint64_t block) {
    return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                       static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in (0, 1): never 0, so that its logarithm is finite.
float unit(uint32_t word) {
    return (static_cast<float>(word >> 8) + 0.5f) * 0x1p-24f;
}

// Fills x from sample(words), which returns the four values of a block. Blocks at the edges are cut.
template <class Sample>
void fill_random(Tensor x, uint64_t seed, uint64_t sequence, int64_t offset, Sample&& sample) {
    float* out = x.as<float>();
    const int64_t count = x.numel();
    cpu::parallel_for((count + cpu::kBlock - 1) / cpu::kBlock, [&](int64_t block) {
        const int64_t begin = offset + block * cpu::kBlock,
                      end = std::min(begin + cpu::kBlock, offset + count);
        for (int64_t first = begin / 4 * 4; first < end; first += 4) {
            const std::array<float, 4> values =
                sample(words_of(seed, sequence, static_cast<uint64_t>(first / 4)));
            for (int64_t i = std::max(first, begin); i < std::min(first + 4, end); ++i)
                out[i - offset] = values[i - first];
        }
    });
}

}  // namespace

void CpuOps::enqueue(const op::RandomNormal& a, Stream& stream) {
    cpu::submit(stream, "random_normal", [=] {
        fill_random(a.x, a.seed, a.sequence, a.offset, [=](const std::array<uint32_t, 4>& words) {
            // Box & Muller 1958: words 0,1 give elements 0,1; words 2,3 give elements 2,3.
            std::array<float, 4> values;
            for (int pair = 0; pair < 4; pair += 2) {
                const float radius = a.deviation * std::sqrt(-2.0f * std::log(unit(words[pair])));
                const float angle = 2.0f * std::numbers::pi_v<float> * unit(words[pair + 1]);
                values[pair] = radius * std::cos(angle);
                values[pair + 1] = radius * std::sin(angle);
            }
            return values;
        });
    });
}

void CpuOps::enqueue(const op::RandomUniform& a, Stream& stream) {
    cpu::submit(stream, "random_uniform", [=] {
        fill_random(a.x, a.seed, a.sequence, a.offset, [=](const std::array<uint32_t, 4>& words) {
            std::array<float, 4> values;
            for (int lane = 0; lane < 4; ++lane) values[lane] = a.bound * (2.0f * unit(words[lane]) - 1.0f);
            return values;
        });
    });
}

}  // namespace speedrun
