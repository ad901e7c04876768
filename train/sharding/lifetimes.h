// Lifetimes of memory during a microbatch, and sharing of memory between disjoint lifetimes: the rings of gathered
// parameters and of gradients.
//
// A microbatch has 2U stages for U units: forward through units 0 … U−1, then backward through U−1 … 0.
#pragma once

#include <cstdint>
#include <vector>

#include "train/sharding/bucket_layout.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

inline constexpr int64_t kAlignedBytes = 64;  // a cache line, and the widest vector register

enum class Pass : uint8_t { forward, backward };

class UnitPasses {
  public:
    explicit UnitPasses(int num_units) : units_(num_units) {}
    int count() const { return 2 * units_; }
    int of(int unit, Pass pass) const { return pass == Pass::forward ? unit : 2 * units_ - 1 - unit; }

  private:
    int units_;
};

// Returns the stages at which compute reads a bucket's values: one lifetime, or one per pass if the gathered values are
// freed between the passes. Reshard::yes frees every bucket after forward; except_last keeps the values that the first
// stage of backward reads; no keeps all until their update.
std::vector<Lifetime> reads_of(const Bucket& bucket, const UnitPasses& unit_passes, Reshard reshard);
// Returns the stages from the first to the last contribution to a bucket's gradient.
Lifetime gradient_of(const Bucket& bucket, const UnitPasses& unit_passes);

// Offsets of buckets in shared memory, and its size.
struct SharedMemory {
    std::vector<int64_t> offset;            // bytes; index: bucket
    std::vector<std::vector<int>> overlap;  // index: bucket; buckets in the same bytes, including itself
    int64_t bytes = 0;
};

// Assigns memory by first_fit(). lifetimes, element_bytes: index: bucket.
SharedMemory share_memory(const BucketLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                          const std::vector<int64_t>& element_bytes);

}  // namespace speedrun
