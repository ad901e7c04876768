// A run's state that forwards all calls; tests override parts of it.
#pragma once

#include "train/checkpoint/run_state.h"

namespace speedrun::testing {

class ForwardedState : public RunState {
  public:
    explicit ForwardedState(RunState& state) : state_(state) {}
    const ParameterTable& table() const override { return state_.table(); }
    ShardedState& state() override { return state_.state(); }
    void refresh_copies() override { state_.refresh_copies(); }
    void snapshot(const StateCopies& copies) override { state_.snapshot(copies); }
    void await_snapshot() override { state_.await_snapshot(); }
    double idle_ms() override { return state_.idle_ms(); }
    void finish_load(int64_t steps) override { state_.finish_load(steps); }

  protected:
    RunState& state_;
};

}  // namespace speedrun::testing
