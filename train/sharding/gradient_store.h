// Gradients of all parameters, f32, and the announcement of each one's completion.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/sharding/bucket_layout.h"
#include "train/sharding/lifetimes.h"
#include "train/sharding/pass_observer.h"

namespace speedrun {

// What is kept of gradients.
struct GradientMemory {
    // The gradients of a microbatch share memory by the stages of backward: a ring. What is not reduced (or
    // stepped) before its memory comes round again makes compute wait.
    bool ring = false;
    // This rank's shards of the sums over microbatches have memory of their own; the full gradient of a
    // microbatch is used up when it has been added to them.
    bool accumulators = false;
    // Is memory that backward writes read by other streams in between?
    bool reused() const { return ring || accumulators; }
};

class GradientStore {
  public:
    // Lays gradients out as `layout`, which must outlive it, lays out parameters.
    GradientStore(const ParameterTable& table, const BucketLayout& layout, Runtime& runtime,
                  const GradientMemory& memory = {});

    const GradientMemory& memory() const { return memory_; }

    // The gradient in the parameter's shape, and flat [n].
    Tensor of(const Parameter& p) const;
    Tensor flat(const Parameter& p) const;
    // A bucket's gradient of this microbatch (or of all so far, where nothing else accumulates) with its
    // padding, flat, and this rank's shard of it.
    Tensor whole(const Bucket& bucket) const;
    Tensor padded_shard(const Bucket& bucket) const;
    // This rank's shard of the sum over microbatches: as the optimizer reads it, and with its padding. The
    // same memory as padded_shard() where there are no accumulators.
    Tensor shard(const Bucket& bucket) const;
    Tensor accumulated_shard(const Bucket& bucket) const;
    // Buckets in the same memory as this one, itself included.
    const std::vector<int>& overlapping(const Bucket& bucket) const { return place_.overlap[bucket.id]; }

    // Before a microbatch. Forgets the gradients of the groups with fresh[group]: the next contribution to
    // each overwrites. With memory().reused() it forgets all of them.
    void begin_microbatch(const std::vector<bool>& fresh);
    void begin_step() { begin_microbatch({}); }  // of all groups
    // From here on nothing contributes to the gradient of this parameter (its id; −1: to all of them something does), and its
    // bucket is not stepped.
    void rest(int parameter) { resting_ = parameter; }
    bool rests(const Bucket& bucket) const {
        return resting_ >= 0 && layout_.bucket_of(table_[resting_]).id == bucket.id;
    }
    // Asked by backward right before it enqueues a contribution: must that be added (true), or is it the
    // first of the step and overwrites (false)?
    bool accumulates(const Parameter& p);
    // Called by backward when the last contribution of this microbatch to p has been enqueued on compute.
    // Unless `still_read`, backward reads the parameter's value no more; otherwise released() follows.
    void ready(const Parameter& p, bool still_read = false);
    // Called by backward when it has enqueued its last read of p's value: from there on p may be stepped.
    void released(const Parameter& p);
    // Who is told, from here on; null: nobody.
    void observe(PassObserver* observer) { observer_ = observer; }
    // All contributions of a microbatch have been enqueued otherwise than by backward: by a captured graph.
    void contributed();
    // Throws, naming them, if parameters were not announced since the last check: a gradient that never came
    // must never be a silent skip.
    void expect_all_ready();

  private:
    int64_t offset_of(const Parameter& p) const;  // bytes

    const ParameterTable& table_;
    const BucketLayout& layout_;
    const GradientMemory memory_;
    SharedMemory place_;
    Buffer buffer_, accumulators_;
    std::vector<int64_t> accumulator_offset_;        // bytes, by bucket
    std::vector<bool> begun_, ready_, bucket_open_;  // by parameter id; by bucket, of this microbatch
    PassObserver* observer_ = nullptr;
    int resting_ = -1;
};

}  // namespace speedrun
