// GradientSync: what happens to a bucket's gradient from its completion by backward until the optimizer may
// read it. Backward announces parameters; when all of a bucket's are final, an event is recorded on compute
// and the bucket's reduction is launched on the reduce stream, at once or when backward has ended. Ordered by
// events alone; memory that buckets share is written again only when it has been read.
#pragma once

#include <functional>
#include <memory>
#include <vector>

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
    struct Listener {
        // The gradient that the optimizer will read has been enqueued on the reduce stream.
        std::function<void(const Bucket&)> reduced;
        // Backward's last read of its values has been enqueued too, after that. In the order of the steps.
        std::function<void(const Bucket&)> released;
    };

    // What it is given must outlive it. awaits_release: await_release() will be called.
    GradientSync(const ParameterTable& table, Launch launch, bool awaits_release, const BucketLayout& layout,
                 GradientStore& gradients, Reducer& reducer, Runtime& runtime, Listener listener);

    void begin_microbatch(const Microbatch& microbatch);
    // The last contribution of this microbatch to the gradient of p has been enqueued on compute.
    void ready(const Parameter& p);
    // Backward's last read of p's value has been enqueued: p may be stepped from there on.
    void released(const Parameter& p);
    // Enqueues, on other streams than compute, the reduction of the buckets that p completed; under
    // `launch: after_backward` they wait for the end of backward. After ready().
    void reduce(const Parameter& p);
    // After a microbatch that is not the last; after the last, backward_done is its event.
    void end_microbatch();
    void launch_waiting(const Event& backward_done);

    bool last_microbatch() const { return microbatch_.last; }
    bool due(const Bucket& bucket) const { return microbatch_.due[static_cast<size_t>(bucket.group)]; }
    // Makes the stream wait until backward reads the bucket's values no more.
    void await_release(const Bucket& bucket, Stream& stream) const { stream.wait(*released_[bucket.id]); }
    // The bucket has been stepped on this stream: where the optimizer reads what backward wrote, that memory
    // is free from here on.
    void stepped(const Bucket& bucket, Stream& stream);
    void trace(Timeline* timeline) { timeline_ = timeline; }

  private:
    bool syncs(const Bucket& bucket) const;
    void await_memory(const Bucket& bucket);
    void launch(const Bucket& bucket);

    const Launch when_;
    const bool awaits_release_;
    const BucketLayout& layout_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    const Listener listener_;
    Microbatch microbatch_;
    // By bucket: parameters whose gradient is not ready, and whose value backward still reads.
    std::vector<int> pending_, unreleased_;
    static constexpr int kNone = -1;
    std::vector<int> completes_;                                 // by parameter: the bucket that it completes
    std::vector<int> waiting_;                                   // buckets that are launched after backward
    std::vector<std::unique_ptr<Event>> raw_, free_, released_;  // by bucket
    std::unique_ptr<Event> microbatch_done_;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
