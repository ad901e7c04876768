#include "train/comm/ordered_sum.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace speedrun {

namespace {

// Elements per tile: the accumulators stay in the L1 cache while the inputs are added one by one.
constexpr int64_t kTile = 1024;

template <class T>
void ordered_sum_of(T* output, const std::vector<const void*>& inputs, int64_t count) {
    std::array<float, kTile> sum;
    for (int64_t begin = 0; begin < count; begin += kTile) {
        const int64_t size = std::min(kTile, count - begin);
        const T* const first = static_cast<const T*>(inputs[0]) + begin;
        for (int64_t e = 0; e < size; ++e) sum[static_cast<size_t>(e)] = static_cast<float>(first[e]);
        for (size_t i = 1; i < inputs.size(); ++i) {
            const T* const next = static_cast<const T*>(inputs[i]) + begin;
            for (int64_t e = 0; e < size; ++e) sum[static_cast<size_t>(e)] += static_cast<float>(next[e]);
        }
        for (int64_t e = 0; e < size; ++e) output[begin + e] = static_cast<T>(sum[static_cast<size_t>(e)]);
    }
}

void largest_of(void* output, const std::vector<const void*>& inputs, int64_t count) {
    auto* const out = static_cast<float*>(output);
    for (int64_t e = 0; e < count; ++e) {
        float best = 0;
        for (const void* input : inputs) {
            const float value = static_cast<const float*>(input)[e];
            if (value > best || std::isnan(value)) best = value;
            if (std::isnan(best)) break;
        }
        out[e] = best;
    }
}

}  // namespace

void ordered_reduction(Reduction reduction, void* output, const std::vector<const void*>& inputs,
                       int64_t count, DType dtype) {
    if (reduction == Reduction::max) return largest_of(output, inputs, count);
    if (dtype == DType::f32) ordered_sum_of(static_cast<float*>(output), inputs, count);
    if (dtype == DType::bf16) ordered_sum_of(static_cast<Bf16*>(output), inputs, count);
}

}  // namespace speedrun
