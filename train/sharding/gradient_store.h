// Memory of all parameters' gradients, f32.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/sharding/bucket_layout.h"
#include "train/sharding/lifetimes.h"

namespace speedrun {

struct GradientMemory {
    // Gradients of a microbatch share memory by their lifetimes in backward (a ring). Before a write, compute waits
    // until the previous bucket in that memory is reduced or updated.
    bool ring = false;
    // Sums over microbatches of this rank's shards have memory of their own. Each microbatch's gradient is added to
    // them, which frees its memory.
    bool accumulators = false;
    // True if other streams read the memory between two writes by backward.
    bool reused() const { return ring || accumulators; }
};

class GradientStore {
  public:
    // `layout`, which is also that of the parameters, must outlive the store.
    GradientStore(const ParameterTable& table, const BucketLayout& layout, Runtime& runtime,
                  const GradientMemory& memory = {});

    const GradientMemory& memory() const { return memory_; }
    const BucketLayout& layout() const { return layout_; }

    // Gradient in the parameter's shape, and flat [n].
    Tensor of(const Parameter& p) const;
    Tensor flat(const Parameter& p) const;
    // Flat gradient of a bucket, with padding, and this rank's shard of it: of this microbatch, or without accumulators
    // the sum of all microbatches so far.
    Tensor whole(const Bucket& bucket) const;
    Tensor padded_shard(const Bucket& bucket) const;
    // This rank's shard of the sum over microbatches, without and with padding. Without accumulators the memory is that
    // of padded_shard().
    Tensor shard(const Bucket& bucket) const;
    Tensor accumulated_shard(const Bucket& bucket) const;
    // Buckets that overlap this one in memory, including itself.
    const std::vector<int>& overlapping(const Bucket& bucket) const { return place_.overlap[bucket.id]; }

  private:
    int64_t offset_of(const Parameter& p) const;  // bytes

    const BucketLayout& layout_;
    const GradientMemory memory_;
    SharedMemory place_;
    Buffer buffer_, accumulators_;
    std::vector<int64_t> accumulator_offset_;  // bytes; index: bucket
};

}  // namespace speedrun
