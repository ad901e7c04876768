// StopSignal: a rank's request to end the run, which all ranks receive with the result of the same step. It is summed
// with the step's loss, so it needs no collective of its own.
#pragma once

#include "train/sharding/step_statistics.h"

namespace speedrun {

class StopSignal {
  public:
    // All arguments must outlive it.
    StopSignal(const StepStatistics& statistics, Runtime& runtime)
        : statistics_(statistics), runtime_(runtime) {}

    // Call before enqueuing the update of a step. stop: this rank requests the end.
    void send(bool stop) {
        runtime_.ops().fill({.x = statistics_.passenger(), .value = stop ? 1.0f : 0.0f}, runtime_.compute());
    }
    // True if any rank requested the end of the run.
    static bool received(const StepNumbers& numbers) { return numbers.passenger() > 0; }

  private:
    const StepStatistics& statistics_;
    Runtime& runtime_;
};

}  // namespace speedrun
