// RunnerState: adapts a StepRunner to the RunState of checkpoints.
#pragma once

#include "train/checkpoint/run_state.h"
#include "train/engine/step_runner.h"

namespace speedrun {

class RunnerState final : public RunState {
  public:
    // The runner must outlive it.
    explicit RunnerState(StepRunner& runner) : runner_(runner), state_(runner.state()) {}

    const ParameterTable& table() const override { return state_.table(); }
    ShardedState& state() override { return state_.schedule.state(); }
    void refresh_copies() override { state_.refresh_copies(); }
    void snapshot(const StateCopies& copies) override {
        state_.refresh_copies();
        state_.schedule.copy_state(copies);
        state_.snapshots.record(state_.steps);
    }
    void await_snapshot() override { state_.snapshots.await(); }
    double idle_ms() override { return runner_.idle_ms(); }
    void finish_load(int64_t steps) override { state_.finish_load(steps); }

  private:
    StepRunner& runner_;
    TrainState& state_;
};

}  // namespace speedrun
