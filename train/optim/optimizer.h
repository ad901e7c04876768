// What every optimizer offers: one step of one region of parameters, enqueued. Implementations: adamw.h,
// muon.h.
#pragma once

#include <memory>
#include <vector>

#include "train/distributed/reducer.h"

namespace speedrun {

struct StepContext {
    int64_t step = 0;      // of this optimizer, from 0
    double lr_factor = 1;  // of the schedule
    Tensor grad_scale;     // f32 [1]: gradients are multiplied by it; not finite: the step changes nothing
    Stream* stream = nullptr;
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    // Steps this rank's part of a region: its gradient, master and compute copy.
    virtual void step(const Region& region, const StepContext& context) = 0;
    // Enqueues the state of step 0.
    virtual void reset(Stream& stream) = 0;
};

// An optimizer of this group's type for these regions, which the type can train (see assign_groups). What it
// is given must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Region*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Reducer& reducer, Runtime& runtime);
// Does an optimizer of this type need whole matrices?
inline bool needs_whole_matrices(const OptimizerGroupConfig& group) {
    return group.type == "muon";
}

}  // namespace speedrun
