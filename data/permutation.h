// Random order of 0 … size-1, computed one element at a time: any row of any epoch is available without a table and
// without earlier rows.
#pragma once

#include <cstdint>

namespace speedrun {

// Key of an epoch's random values.
struct SeedAndEpoch {
    uint64_t seed = 0;
    int64_t epoch = 0;
};

// Bijection of [0, size) for (seed, epoch): a Feistel network with Philox as round function, on the smallest even
// number of bits that holds `size`. Values past the end are mapped again until they are inside (cycle walking, fewer
// than four passes on average).
class Permutation {
  public:
    // size ≥ 1 and below 2^62, else an internal error.
    Permutation(int64_t size, SeedAndEpoch from);

    // Returns the image of `index`, 0 ≤ index < size. O(1).
    int64_t operator()(int64_t index) const;

  private:
    uint64_t size_;
    uint64_t seed_;
    uint64_t epoch_;
    int half_bits_;
};

// Returns a random integer in [0, range) for (seed, epoch, shard): the start of the epoch's window grid in that shard.
// range ≥ 1.
int64_t window_offset(int64_t range, SeedAndEpoch from, int64_t shard);

}  // namespace speedrun
