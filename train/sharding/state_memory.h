// StateMemory: per-element optimizer state for this rank's shards of some buckets.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

class StateMemory {
  public:
    // Ignores kinds that are not per element.
    StateMemory(const std::vector<StateKind>& kinds, const std::vector<const Bucket*>& members,
                const BucketLayout& layout, Device& device);

    const std::vector<StateKind>& kinds() const { return kinds_; }
    // Returns one tensor per kind, [valid elements of this rank's shard] in its dtype.
    std::span<const Tensor> of(const Bucket& bucket) const { return tensors_.at(bucket.id); }
    // Enqueues zeros.
    void reset(Ops& ops, Stream& stream);

  private:
    std::vector<StateKind> kinds_;
    std::vector<Buffer> memory_;                  // index: kind
    std::map<int, std::vector<Tensor>> tensors_;  // key: bucket id; index: kind
};

// Enqueues zeros for a whole buffer of f32, or of bf16 with a multiple of 4 bytes.
void fill_with_zeros(const Buffer& buffer, Ops& ops, Stream& stream);

}  // namespace speedrun
