#include "data/mixture_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/device/error.h"
#include "kernels/device/philox.h"

namespace speedrun {

namespace {

constexpr int kBits = 62;
constexpr uint64_t kOne = uint64_t{1} << kBits;
constexpr uint32_t kShiftStream = 0x6d697874;  // "mixt", as the streams of permutation.cpp

uint64_t reverse(uint64_t value) {
    uint64_t reversed = 0;
    for (int bit = 0; bit < kBits; ++bit) reversed |= (value >> bit & 1) << (kBits - 1 - bit);
    return reversed;
}

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights, uint64_t seed) {
    const auto random = philox4x32({0, 0, 0, kShiftStream}, philox_key(seed));
    shift_ = (uint64_t{random[0]} << 32 | random[1]) & (kOne - 1);
    if (weights.empty()) throw_internal("a mixture without sources");
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0;
    for (const double weight : weights) {
        if (!(weight > 0 && std::isfinite(weight))) throw_internal("a source has weight {}", weight);
        sum += weight;
        ends_.push_back(static_cast<uint64_t>(std::ldexp(std::min(1.0, sum / all), kBits)));
    }
    ends_.back() = kOne;
}

double MixtureOrder::share(int source) const {
    return std::ldexp(static_cast<double>(ends_[static_cast<size_t>(source)] - begin_of(source)), -kBits);
}

uint64_t MixtureOrder::position(int64_t row) const {
    return reverse(static_cast<uint64_t>(row)) ^ shift_;
}

int MixtureOrder::source_of(int64_t row) const {
    return static_cast<int>(std::upper_bound(ends_.begin(), ends_.end(), position(row)) - ends_.begin());
}

int64_t MixtureOrder::rows_before(int source, int64_t row) const {
    if (row < 0 || static_cast<uint64_t>(row) >= kOne) throw_internal("row {} of a mixture", row);
    return count_below(row, ends_[static_cast<size_t>(source)]) - count_below(row, begin_of(source));
}

// The rows below n are blocks of 2^j, one for each bit j of n: the bits above j equal the bits of n, bit j is 0 and the lower
// ones are free. The free bits are the upper j bits of the positions of a block, which are therefore `low`, low + 2^(62-j), …
int64_t MixtureOrder::count_below(int64_t row, uint64_t end) const {
    const auto n = static_cast<uint64_t>(row);
    uint64_t count = 0;
    for (int bit = 0; bit < kBits; ++bit) {
        if ((n >> bit & 1) == 0) continue;
        const uint64_t step = kOne >> bit, block = n >> (bit + 1) << (bit + 1);
        const uint64_t low = (reverse(block) ^ shift_) & (step - 1);
        if (end > low) count += std::min(uint64_t{1} << bit, (end - low + step - 1) / step);
    }
    return static_cast<int64_t>(count);
}

}  // namespace speedrun
