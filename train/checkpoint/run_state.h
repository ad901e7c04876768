// RunState: the state that a checkpoint saves and loads. Implemented by the engine.
#pragma once

#include "train/parameters/parameter_table.h"
#include "train/sharding/bucket_schedule.h"

namespace speedrun {

class RunState {
  public:
    virtual ~RunState() = default;
    virtual const ParameterTable& table() const = 0;
    // Masters and optimizer state by bucket, and scales.
    virtual ShardedState& state() = 0;
    // Enqueues the copy of the sources' current values into parameters that are inactive until a later stage
    // (Parameter::copy_of). Call before any read of masters or state; snapshot() includes it.
    virtual void refresh_copies() = 0;
    // Enqueues the copies after the last step, see BucketSchedule::copy_state. The result of the next step includes the
    // time that training waited for them.
    virtual void snapshot(const StateCopies& copies) = 0;
    // Waits until the last snapshot is complete.
    virtual void await_snapshot() = 0;
    // Returns how long the device has been idle since the last enqueued step, in ms; 0 while it is busy.
    virtual double idle_ms() = 0;
    // Call after loading the state of `steps` steps into masters and ShardedState::shards. Updates the compute copies.
    // Collective; waits.
    virtual void finish_load(int64_t steps) = 0;
};

}  // namespace speedrun
