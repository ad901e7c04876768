// PassTracker: events of a microbatch's passes, in the order in which the executor enqueues them. It decides which
// contribution to a gradient overwrites, and checks that each gradient is announced exactly once. Derived classes act
// on the events.
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
    // `table` and `gradients` must outlive it. `unused`: parameter without a gradient, because the model does not use
    // it.
    PassTracker(const ParameterTable& table, const GradientStore& gradients,
                ParameterId unused = kNoParameter);
    virtual ~PassTracker() = default;
    PassTracker(const PassTracker&) = delete;
    PassTracker& operator=(const PassTracker&) = delete;

    // Begins a step of one or more microbatches: the next contribution to each gradient overwrites.
    void begin_step() { begin_pass({}, unused_); }

    // Call before the first use of a unit's parameters in this pass. Validation has no backward pass.
    virtual void enter(int /*unit*/, Pass /*pass*/) {}
    // Call before enqueuing a contribution to the gradient of p on compute.
    ParameterGradient begin_gradient(const Parameter& p);
    // Call after enqueuing the microbatch's last contribution to p on compute. With `still_read`, backward still reads
    // p's value, and param_free(p) follows.
    void grad_ready(const Parameter& p, bool still_read = false);
    // Call after enqueuing backward's last read of p's value: p may be updated.
    void param_free(const Parameter& p);
    // Call after backward. Throws an internal error that names each parameter without grad_ready() in this microbatch:
    // a missing gradient must not be ignored.
    void end_backward();

  protected:
    // Call before a microbatch. The next contribution overwrites in each group g with fresh[g]. It overwrites in all
    // groups if `fresh` is empty, or if other streams read the memory in between (GradientMemory::reused).
    void begin_pass(const std::vector<bool>& fresh, ParameterId unused);
    // Marks all gradients as written: a captured graph enqueues the microbatch's contributions.
    void mark_contributions();
    // True if the bucket holds the unused parameter.
    bool is_unused(const Bucket& bucket) const;

    // Called before the microbatch's first contribution to a bucket, if other streams read its memory in between.
    virtual void on_bucket_begin(const Bucket& /*bucket*/) {}
    virtual void on_grad_ready(const Parameter& /*p*/) {}
    virtual void on_param_free(const Parameter& /*p*/) {}

  private:
    const ParameterTable& table_;
    const GradientStore& gradients_;
    ParameterId unused_;
    std::vector<bool> started_, ready_;  // index: parameter
    std::vector<bool> bucket_started_;   // in this microbatch; index: bucket
};

}  // namespace speedrun
