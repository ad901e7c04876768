// Gradients of all parameters, f32, and the announcement of each one's completion.
#pragma once

#include <functional>
#include <vector>

#include "train/model/region_layout.h"
#include "train/model/runtime.h"

namespace speedrun {

class GradientStore {
  public:
    // As `layout`, which must outlive it, lays parameters out.
    GradientStore(const ParameterTable& table, const RegionLayout& layout, Runtime& runtime);

    // The gradient in the parameter's shape, and flat [n].
    Tensor of(const Parameter& p) const;
    Tensor flat(const Parameter& p) const;
    // A region with its padding, flat; this rank's part of it with padding, and without.
    Tensor whole(const Region& region) const;
    Tensor padded_part(const Region& region) const;
    Tensor part(const Region& region) const;

    // Forgets all gradients: the next contribution to each overwrites. Once per optimizer step.
    void begin_step();
    // Asked by backward right before it enqueues a contribution: must that be added (true), or is it the
    // first of the step and overwrites (false)?
    bool accumulates(const Parameter& p);
    // Called by backward when the last contribution of this microbatch to p has been enqueued on compute.
    // Unless `still_read`, backward reads the parameter's value no more; otherwise released() follows.
    void ready(const Parameter& p, bool still_read = false);
    // Called by backward when it has enqueued its last read of p's value: from there on p may be stepped.
    void released(const Parameter& p);
    // Who is told by ready(); one listener at a time.
    void listen(std::function<void(const Parameter&)> listener) { listener_ = std::move(listener); }
    // Who is told by released(), and by ready() where nothing follows.
    void listen_released(std::function<void(const Parameter&)> listener) {
        released_listener_ = std::move(listener);
    }
    // Throws, naming them, if parameters were not announced since the last check: a gradient that never came
    // must never be a silent skip.
    void expect_all_ready();

  private:
    const ParameterTable& table_;
    const RegionLayout& layout_;
    Buffer buffer_;
    std::vector<bool> begun_, ready_;  // by parameter id
    std::function<void(const Parameter&)> listener_, released_listener_;
};

}  // namespace speedrun
