// A random order of 0 … size-1 that is computed one element at a time, so that row r of any epoch is known
// without a table and without the rows before it.
#pragma once

#include <cstdint>

namespace speedrun {

// What an epoch's random numbers are a function of.
struct SeedAndEpoch {
    uint64_t seed = 0;
    int64_t epoch = 0;
};

// The bijection of [0, size) that belongs to (seed, epoch): a Feistel network whose round function is Philox,
// on the smallest even number of bits that holds `size`; values past the end are sent through again until
// they fall inside (cycle walking, fewer than four passes on average).
class Permutation {
  public:
    // size ≥ 1 and below 2^62, else an internal error.
    Permutation(int64_t size, SeedAndEpoch from);

    // The image of `index`, 0 ≤ index < size. O(1).
    int64_t operator()(int64_t index) const;

  private:
    uint64_t size_;
    uint64_t seed_;
    uint64_t epoch_;
    int half_bits_;
};

// A random integer in [0, range) that belongs to (seed, epoch, shard): where the epoch's window grid starts
// in that shard. range ≥ 1.
int64_t window_offset(int64_t range, SeedAndEpoch from, int64_t shard);

}  // namespace speedrun
