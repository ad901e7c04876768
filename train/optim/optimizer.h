// What every optimizer offers: one step of one parameter, enqueued. Implementations: adamw.h, muon.h.
#pragma once

#include <memory>
#include <vector>

#include "train/model/gradient_store.h"
#include "train/model/parameter_store.h"

namespace speedrun {

struct StepContext {
    int64_t step = 0;      // optimizer step, from 0
    double lr_factor = 1;  // of the schedule
    Tensor grad_scale;     // f32 [1]: gradients are multiplied by it; not finite: the step changes nothing
    Stream* stream = nullptr;
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    virtual void step(const Parameter& p, const StepContext& context) = 0;
    // Enqueues the state of step 0.
    virtual void reset(Stream& stream) = 0;
};

// An optimizer of this group's type for these parameters, which the type can train (see assign_groups).
std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Parameter*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Runtime& runtime);

}  // namespace speedrun
