// Gradients of all parameters, f32, and the announcement of each one's completion.
#pragma once

#include <functional>
#include <vector>

#include "train/model/parameter_table.h"
#include "train/model/runtime.h"

namespace speedrun {

class GradientStore {
  public:
    GradientStore(const ParameterTable& table, Runtime& runtime);

    // The gradient in the parameter's shape, and flat [n].
    Tensor of(const Parameter& p) const;
    Tensor flat(const Parameter& p) const;

    // Forgets all gradients: the next contribution to each overwrites. Once per optimizer step.
    void begin_step();
    // Asked by backward right before it enqueues a contribution: must that be added (true), or is it the
    // first of the step and overwrites (false)?
    bool accumulates(const Parameter& p);
    // Called by backward when the last contribution of this microbatch to p has been enqueued on compute.
    void ready(const Parameter& p);
    // Who is told by ready(); one listener at a time.
    void listen(std::function<void(const Parameter&)> listener) { listener_ = std::move(listener); }
    // Throws, naming them, if parameters were not announced since the last check: a gradient that never came
    // must never be a silent skip.
    void expect_all_ready();

  private:
    const ParameterTable& table_;
    Buffer buffer_;
    std::vector<int64_t> offset_;      // bytes
    std::vector<bool> begun_, ready_;  // by parameter id
    std::function<void(const Parameter&)> listener_;
};

}  // namespace speedrun
