// PassObserver: who is told of a microbatch's passes while the model enqueues them. UpdatePipeline is the one
// that trains; what it does not ask for does nothing.
#pragma once

#include "train/sharding/bucket_layout.h"
#include "train/sharding/lifetimes.h"

namespace speedrun {

class PassObserver {
  public:
    virtual ~PassObserver() = default;
    // Before the first use of a unit's parameters in this pass. A validation has no backward passes.
    virtual void entered(int /*unit*/, Pass /*pass*/) {}
    // Before the first contribution of a microbatch to a bucket's gradient, where other streams read that
    // memory in between (GradientMemory::reused).
    virtual void begun(const Bucket& /*bucket*/) {}
    // The last contribution of this microbatch to p's gradient has been enqueued on compute.
    virtual void ready(const Parameter& /*p*/) {}
    // Backward's last read of p's value has been enqueued, after ready(): from there on p may be stepped.
    virtual void released(const Parameter& /*p*/) {}
};

}  // namespace speedrun
