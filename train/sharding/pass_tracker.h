// PassTracker: events of a microbatch's passes, in the order in which the executor enqueues them. It decides which contribution
// to a gradient overwrites, and checks that each gradient is announced exactly once. Derived classes act on the events.
#pragma once

#include "train/sharding/gradient_store.h"

namespace speedrun {

// Memory of a parameter's gradient, for one contribution.
struct ParameterGradient {
    Tensor tensor;
    bool adds = false;  // false: the contribution overwrites
};

class PassTracker {
  public:
    // `table` and `gradients` must outlive it. `unused`: parameter that the model does not use, without a gradient.
    PassTracker(const ParameterTable& table, const GradientStore& gradients,
                ParameterId unused = kNoParameter);
    virtual ~PassTracker() = default;
    PassTracker(const PassTracker&) = delete;
    PassTracker& operator=(const PassTracker&) = delete;

    // Begins a step of one microbatch or more: the next contribution to each gradient overwrites.
    void begin_step() { begin_pass({}, unused_); }

    // Before the first use of a unit's parameters in this pass. A validation has no backward pass.
    virtual void enter(int /*unit*/, Pass /*pass*/) {}
    // Before a contribution to the gradient of p is enqueued on compute.
    ParameterGradient begin_gradient(const Parameter& p);
    // After the microbatch's last contribution to p is enqueued on compute. Unless `still_read`, backward reads the value of p
    // no more; otherwise param_free(p) follows.
    void grad_ready(const Parameter& p, bool still_read = false);
    // After backward's last read of p's value is enqueued: p may be updated.
    void param_free(const Parameter& p);
    // After backward. Throws an internal error that names each parameter without grad_ready() in this microbatch: a missing
    // gradient must not be skipped silently.
    void end_backward();

  protected:
    // Before a microbatch. The next contribution overwrites in each group g with fresh[g]. It overwrites in all groups if `fresh`
    // is empty, or if other streams read the memory in between (GradientMemory::reused).
    void begin_pass(const std::vector<bool>& fresh, ParameterId unused);
    // Marks all gradients as written: a captured graph enqueues the contributions of the microbatch.
    void mark_contributions();
    // True if the bucket holds the parameter without a gradient.
    bool is_unused(const Bucket& bucket) const;

    // Before the microbatch's first contribution to a bucket, if other streams read its memory in between.
    virtual void on_bucket_begin(const Bucket& /*bucket*/) {}
    virtual void on_grad_ready(const Parameter& /*p*/) {}
    virtual void on_param_free(const Parameter& /*p*/) {}

  private:
    const ParameterTable& table_;
    const GradientStore& gradients_;
    ParameterId unused_;
    std::vector<bool> begun_, ready_;  // index: parameter
    std::vector<bool> bucket_begun_;   // index: bucket; in this microbatch
};

}  // namespace speedrun
