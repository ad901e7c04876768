// StepSlot: events and statistics of one enqueued step, until it is collected.
#pragma once

#include <memory>

#include "train/engine/train_state.h"

namespace speedrun {

struct StepSlot {
    explicit StepSlot(const TrainState& state);

    // After the microbatches of the step: enqueues the update of all parameters, and copies of statistics and counters to the
    // host. stop: this rank asks to end the run.
    void enqueue_update(TrainState& state, bool stop);

    StepNumbers numbers() const { return StepNumbers(memory.as<float>()); }
    double loss() const { return numbers().loss_sum() / static_cast<double>(targets); }

    int64_t step = 0;
    int64_t targets = 0;  // valid ones, of all ranks
    double lr_factor = 0;
    HostBuffer memory;  // statistics on the host
    std::unique_ptr<Event> begun, backward_done, reduce_done, step_done;
    Reducer::Counts counts;  // since the ranks connected
    Reducer::Count values;   // counters of communicators between nodes
};

}  // namespace speedrun
