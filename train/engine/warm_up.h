// Warm-up: a step of every stage on dummy batches before the clock starts, and the capture of graphs.
#pragma once

#include <vector>

#include "train/engine/microbatch_runner.h"
#include "train/engine/step_slot.h"
#include "train/engine/step_work.h"

namespace speedrun {

class WarmUp {
  public:
    // All arguments must outlive it. `slot` must be free.
    WarmUp(TrainState& state, MicrobatchRunner& microbatches, StepSlot& slot)
        : state_(state), microbatches_(microbatches), slot_(slot) {}

    // Runs every shape of operation once; a CPU without other ranks only enqueues them. Then captures graphs if the
    // config requests them. Overwrites parameters and optimizer state: call TrainState::initialize() afterwards.
    // Returns the work of a step, by stage.
    std::vector<StepWork> run();

  private:
    StepWork run_step(const RunStage& stage);
    void run_validation();

    TrainState& state_;
    MicrobatchRunner& microbatches_;
    StepSlot& slot_;
};

}  // namespace speedrun
