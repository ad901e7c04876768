// Memory of all parameters' gradients, f32.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/sharding/bucket_layout.h"
#include "train/sharding/lifetimes.h"

namespace speedrun {

struct GradientMemory {
    // Gradients of a microbatch share memory by their lifetimes in backward: a ring. Compute waits until the bucket that had a
    // piece of memory before is reduced, or stepped.
    bool ring = false;
    // This rank's shards of the sums over microbatches have memory of their own. The gradient of a microbatch is added to
    // them, and its memory is then free.
    bool accumulators = false;
    // True if other streams read memory between two writes by backward.
    bool reused() const { return ring || accumulators; }
};

class GradientStore {
  public:
    // `layout`, of the parameters too, must outlive the store.
    GradientStore(const ParameterTable& table, const BucketLayout& layout, Runtime& runtime,
                  const GradientMemory& memory = {});

    const GradientMemory& memory() const { return memory_; }
    const BucketLayout& layout() const { return layout_; }

    // The gradient in the parameter's shape, and flat [n].
    Tensor of(const Parameter& p) const;
    Tensor flat(const Parameter& p) const;
    // A bucket's gradient with its padding, flat, and this rank's shard of it: of this microbatch, or without accumulators the
    // sum of all microbatches so far.
    Tensor whole(const Bucket& bucket) const;
    Tensor padded_shard(const Bucket& bucket) const;
    // This rank's shard of the sum over microbatches: as the optimizer reads it, and with its padding. Without accumulators the
    // same memory as padded_shard().
    Tensor shard(const Bucket& bucket) const;
    Tensor accumulated_shard(const Bucket& bucket) const;
    // Buckets in the same memory as this one, itself included.
    const std::vector<int>& overlapping(const Bucket& bucket) const { return place_.overlap[bucket.id]; }

  private:
    int64_t offset_of(const Parameter& p) const;  // bytes

    const BucketLayout& layout_;
    const GradientMemory memory_;
    SharedMemory place_;
    Buffer buffer_, accumulators_;
    std::vector<int64_t> accumulator_offset_;  // bytes, by bucket
};

}  // namespace speedrun
