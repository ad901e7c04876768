// StateMemory: what an optimizer remembers of each element, for this rank's shards of some buckets.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

class StateMemory {
  public:
    // Keeps, of these kinds, those that an element has.
    StateMemory(const std::vector<StateKind>& kinds, const std::vector<const Bucket*>& members,
                const BucketLayout& layout, Device& device);

    const std::vector<StateKind>& kinds() const { return kinds_; }
    // [valid elements of this rank's shard] of each kind, in its type.
    std::span<const Tensor> of(const Bucket& bucket) const { return tensors_.at(bucket.id); }
    // Enqueues zeros everywhere.
    void reset(Ops& ops, Stream& stream);

  private:
    std::vector<StateKind> kinds_;
    std::vector<Buffer> memory_;                  // by kind
    std::map<int, std::vector<Tensor>> tensors_;  // by bucket id, then kind
};

// Enqueues zeros in all of a buffer of f32, or of bf16 in whole words of 4 bytes.
void fill_with_zeros(const Buffer& buffer, Ops& ops, Stream& stream);

}  // namespace speedrun
