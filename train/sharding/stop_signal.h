// StopSignal: a rank's wish to end the run, which all ranks learn of the same step. It travels as a number
// beside the step's loss, so that it costs no message of its own.
#pragma once

#include "train/sharding/step_statistics.h"

namespace speedrun {

class StopSignal {
  public:
    // What it is given must outlive it.
    StopSignal(const StepStatistics& statistics, Runtime& runtime)
        : statistics_(statistics), runtime_(runtime) {}

    // Before the update of a step is enqueued: does this rank wish to stop?
    void send(bool stop) {
        runtime_.ops().fill({.x = statistics_.passenger(), .value = stop ? 1.0f : 0.0f}, runtime_.compute());
    }
    // Does any rank, by the numbers of a step?
    static bool received(const StepNumbers& numbers) { return numbers.passenger() > 0; }

  private:
    const StepStatistics& statistics_;
    Runtime& runtime_;
};

}  // namespace speedrun
