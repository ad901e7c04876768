// StepSlot: events and statistics of an enqueued step until it is collected.
#pragma once

#include <memory>

#include "train/engine/train_state.h"

namespace speedrun {

struct StepSlot {
    explicit StepSlot(const TrainState& state);

    // Call after the step's microbatches. Enqueues the update of all parameters, and copies of statistics and counters
    // to the host. stop: this rank asks to end the run.
    void enqueue_update(TrainState& state, bool stop);

    HostStatistics numbers() const { return HostStatistics(memory.as<float>()); }
    double loss() const { return numbers().loss_sum() / static_cast<double>(targets); }

    int64_t step = 0;
    int64_t targets = 0;  // valid targets, all ranks
    double lr_factor = 0;
    HostBuffer memory;  // statistics on the host
    std::unique_ptr<Event> started, backward_done, reduce_done, step_done;
    Reducer::Counts counts;  // totals since the ranks connected
    Reducer::Count values;   // counters of the communicators used by nodes
};

}  // namespace speedrun
