#include "data/permutation.h"

#include <bit>
#include <utility>

#include "kernels/device/error.h"
#include "kernels/device/philox.h"

namespace speedrun {

namespace {

// The last counter word identifies the use, so that two uses of one seed never share random values.
constexpr uint32_t kPermutationStream = 0x7065726d;  // "perm"
constexpr uint32_t kOffsetStream = 0x6f666673;       // "offs"

// Four rounds permute a large range well; tiny halves (1 or 2 bits) mix less per round.
constexpr uint32_t kRounds = 8;

}  // namespace

Permutation::Permutation(int64_t size, SeedAndEpoch from)
    : size_(static_cast<uint64_t>(size)),
      seed_(from.seed),
      epoch_(static_cast<uint64_t>(from.epoch)),
      half_bits_(0) {
    if (size < 1 || size >= (int64_t{1} << 62)) throw_internal("permutation of {} elements", size);
    half_bits_ = static_cast<int>(std::bit_width(size_ - 1) + 1) / 2;
}

int64_t Permutation::operator()(int64_t index) const {
    if (index < 0 || static_cast<uint64_t>(index) >= size_) {
        throw_internal("index {} of a permutation of {} elements", index, size_);
    }
    if (size_ == 1) return 0;
    const PhiloxKey key = philox_key(seed_);
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t value = static_cast<uint64_t>(index);
    const uint32_t epoch_low = static_cast<uint32_t>(epoch_);
    const uint32_t epoch_high = static_cast<uint32_t>(epoch_ >> 32);
    do {
        uint64_t left = value >> half_bits_;
        uint64_t right = value & mask;
        for (uint32_t round = 0; round < kRounds; ++round) {
            const PhiloxCounter counter = {static_cast<uint32_t>(right), epoch_low,
                                           epoch_high ^ (round << 24), kPermutationStream};
            const auto random = philox4x32(counter, key);
            left = std::exchange(right, left ^ (random[0] & mask));
        }
        value = (left << half_bits_) | right;
    } while (value >= size_);
    return static_cast<int64_t>(value);
}

int64_t window_offset(int64_t range, SeedAndEpoch from, int64_t shard) {
    const uint64_t epoch_bits = static_cast<uint64_t>(from.epoch);
    const auto random = philox4x32({static_cast<uint32_t>(shard), static_cast<uint32_t>(epoch_bits),
                                    static_cast<uint32_t>(epoch_bits >> 32), kOffsetStream},
                                   philox_key(from.seed));
    // Multiply and shift instead of a remainder. A range is far below 2^32, so the bias is negligible.
    return static_cast<int64_t>((static_cast<uint64_t>(random[0]) * static_cast<uint64_t>(range)) >> 32);
}

}  // namespace speedrun
