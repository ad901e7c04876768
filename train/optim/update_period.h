// Steps of a run at which an optimizer group with `every: k` updates its parameters: the last of each period of k steps. The
// gradients of a period are summed.
#pragma once

#include <numeric>

#include "train/optim/optimizers.h"

namespace speedrun {

// True if no gradient is pending in the group before this step.
inline bool begins_period(const StepSettings& group, int64_t step) {
    return step % group.every == 0;
}
// True if the group updates its parameters at the end of this step.
inline bool updates_at(const StepSettings& group, int64_t step) {
    return (step + 1) % group.every == 0;
}
// Returns the number of the group's updates before this step.
inline int64_t updates_before(const StepSettings& group, int64_t step) {
    return step / group.every;
}
// Returns the number of the group's updates in the last `steps` steps, the end of which is the end of a period.
inline int64_t updates_in_last(const StepSettings& group, int64_t steps) {
    return steps > 0 ? (steps - 1) / group.every + 1 : 0;
}
// Returns the smallest number of steps that is a multiple of every group's period.
inline int64_t common_period(const OptimizersConfig& optimizers) {
    int64_t period = 1;
    for (const OptimizerGroupConfig& group : optimizers.groups) period = std::lcm(period, group.every);
    return period;
}

}  // namespace speedrun
