// StateMemory: per-element optimizer state for this rank's shards of some buckets.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

struct StateShard {
    StateKind kind;
    Tensor values;  // [k], in the kind's dtype; k may be 0
    // Null: `values` is the state of this rank's shard of the bucket. Otherwise it is the state of whole matrices
    // of this parameter. `begin`: offset in the parameter's state, elements; `shape`: the shape
    // of that state (state_tensors of train/optim/state.h).
    const Parameter* parameter = nullptr;
    int64_t begin = 0;
    std::vector<int64_t> shape = {};
};

class StateMemory {
  public:
    // Ignores kinds that are not per element.
    StateMemory(const std::vector<StateKind>& kinds, const std::vector<const Bucket*>& members,
                const BucketLayout& layout, Device& device);

    // Returns one tensor per kind, [valid elements of this rank's shard] in its dtype.
    std::span<const Tensor> of(const Bucket& bucket) const { return tensors_.at(bucket.id); }
    std::vector<StateShard> shards(const Bucket& bucket) const;
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
