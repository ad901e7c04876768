// RunState: what checkpoints are taken of and loaded into. The engine implements it.
#pragma once

#include "train/parameters/parameter_table.h"
#include "train/sharding/update_pipeline.h"

namespace speedrun {

class RunState {
  public:
    virtual ~RunState() = default;
    virtual const ParameterTable& table() const = 0;
    // Masters and the optimizers' state, by bucket, and scales.
    virtual UpdatePipeline& updates() = 0;
    // Enqueues that parameters which rest until a stage uses them (Parameter::copy_of) become their sources as of the
    // last step. Before any read of masters or state; snapshot() includes it.
    virtual void refresh_copies() = 0;
    // Behind the step enqueued last: UpdatePipeline::copy_state. The result of the next step says how long
    // training waited for it.
    virtual void snapshot(const StateCopy& copy) = 0;
    // Waits until the last snapshot is there.
    virtual void await_snapshot() = 0;
    // How long the device has had nothing to do since the step enqueued last; 0 if it is still at it.
    virtual double idle_ms() = 0;
    // After the state has been written to (masters, UpdatePipeline::state) as it was after `steps` steps: what
    // compute reads follows it. Waits; all ranks.
    virtual void publish_state(int64_t steps) = 0;
};

}  // namespace speedrun
