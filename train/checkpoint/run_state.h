// RunState: what checkpoints are taken of and loaded into. The engine implements it.
#pragma once

#include "train/parameters/parameter_table.h"
#include "train/sharding/bucket_schedule.h"

namespace speedrun {

class RunState {
  public:
    virtual ~RunState() = default;
    virtual const ParameterTable& table() const = 0;
    // Masters and the optimizers' state, by bucket, and scales.
    virtual ShardedState& state() = 0;
    // Enqueues that parameters which rest until a stage uses them (Parameter::copy_of) become their sources as of the
    // last step. Before any read of masters or state; snapshot() includes it.
    virtual void refresh_copies() = 0;
    // Enqueues the copies after the last step, see BucketSchedule::copy_state. The result of the next step has the time that
    // training waited for them.
    virtual void snapshot(const StateCopies& copies) = 0;
    // Waits until the last snapshot is there.
    virtual void await_snapshot() = 0;
    // How long the device has had nothing to do since the step enqueued last; 0 if it is still at it.
    virtual double idle_ms() = 0;
    // After the state has been written to (masters, ShardedState::shards) as it was after `steps` steps: what
    // compute reads follows it. Waits; all ranks.
    virtual void publish_state(int64_t steps) = 0;
};

}  // namespace speedrun
