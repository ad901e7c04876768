// When memory is needed during a microbatch, and how pieces that are never needed together share it: the
// rings of gathered parameters and of gradients in flight.
//
// A microbatch is 2U stages for U units: forward through units 0 … U−1, then backward through U−1 … 0.
#pragma once

#include <cstdint>
#include <vector>

#include "train/sharding/bucket_layout.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

inline constexpr int64_t kAlignedBytes = 64;  // a cache line, and the widest vector

enum class Pass : uint8_t { forward, backward };

class Stages {
  public:
    explicit Stages(int num_units) : units_(num_units) {}
    int count() const { return 2 * units_; }
    int of(int unit, Pass pass) const { return pass == Pass::forward ? unit : 2 * units_ - 1 - unit; }

  private:
    int units_;
};

// The stages at which compute reads a bucket's values: one lifetime, or one per pass if the gathered values
// are freed in between. Reshard::yes frees every bucket after forward; except_last keeps what the first
// stage of backward reads; no keeps all of them until they are stepped.
std::vector<Lifetime> reads_of(const Bucket& bucket, const Stages& stages, Reshard reshard);
// The stages from the first contribution to its gradient to the last.
Lifetime gradient_of(const Bucket& bucket, const Stages& stages);

// Where each bucket lies in memory that buckets share: byte offsets, and the bytes in all.
struct SharedMemory {
    std::vector<int64_t> offset;            // bytes, by bucket
    std::vector<std::vector<int>> overlap;  // by bucket: those in the same bytes, itself included
    int64_t bytes = 0;
};

// First fit, larger buckets first or earlier ones, whichever needs less. lifetimes, element_bytes: by
// bucket.
SharedMemory share_memory(const BucketLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                          const std::vector<int64_t>& element_bytes);

}  // namespace speedrun
