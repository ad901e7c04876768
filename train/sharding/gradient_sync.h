// GradientSync: which bucket a parameter completes, and the reduction of a bucket's gradient, ordered by
// events alone: it begins when the gradient is ready, and the memory that buckets share is written again only
// when it has been read.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/graph_capture.h"
#include "train/sharding/reducer.h"
#include "train/trace/timeline.h"

namespace speedrun {

class GradientSync {
  public:
    // A microbatch, by optimizer group: whose gradient begins anew with its step, and whose is final after
    // its step's last microbatch.
    struct Microbatch {
        bool first = true, last = true;
        std::vector<bool> fresh, due;
    };

    // What it is given must outlive it. awaits_release: await_release() will be called.
    GradientSync(Launch launch, bool awaits_release, const BucketLayout& layout, GradientStore& gradients,
                 Reducer& reducer, Runtime& runtime, GraphCapture& capture);

    void begin_microbatch(const Microbatch& microbatch);
    // Makes compute wait until the bucket's gradient may be written.
    void await_memory(const Bucket& bucket);
    // The last contribution of this microbatch to the gradient of p has been enqueued on compute. Returns the
    // bucket that p completes, if that is to be reduced after this microbatch.
    const Bucket* ready(const Parameter& p);
    // Backward's last read of p's value has been enqueued. Returns the bucket of which it was the last, if
    // that is stepped after this microbatch.
    const Bucket* released(const Parameter& p);
    // Enqueues the reduction of a complete bucket on the reduce stream. Under `launch: after_backward` that
    // stream waits for the end of backward already.
    void reduce(const Bucket& bucket);

    bool last_microbatch() const { return microbatch_.last; }
    bool due(const Bucket& bucket) const {
        return microbatch_.due[static_cast<size_t>(bucket.group)] && !gradients_.rests(bucket);
    }
    // Is the bucket's gradient, once reduced after this microbatch, what the optimizer reads?
    bool final(const Bucket& bucket) const { return microbatch_.last && due(bucket); }
    // Makes the stream wait until backward reads the bucket's values no more.
    void await_release(const Bucket& bucket, Stream& stream) const { stream.wait(*released_[bucket.id]); }
    // The bucket has been stepped on this stream: where the optimizer reads what backward wrote, that memory
    // is free from here on.
    void stepped(const Bucket& bucket, Stream& stream);
    void trace(Timeline* timeline) { timeline_ = timeline; }

  private:
    bool reduces(const Bucket& bucket) const;

    const Launch when_;
    const bool awaits_release_;
    const BucketLayout& layout_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    GraphCapture& capture_;
    Microbatch microbatch_;
    // By bucket: parameters whose gradient is not ready, and whose value backward still reads.
    std::vector<int> pending_, unreleased_;
    std::vector<std::unique_ptr<Event>> raw_, free_, released_;  // by bucket
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
