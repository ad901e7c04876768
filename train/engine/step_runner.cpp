#include "train/engine/step_runner.h"

#include "train/engine/warm_up.h"

namespace speedrun {

StepRunner::StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks)
    : state_(config, runtime, ranks),
      microbatches_(state_),
      work_(state_.stages.stages.size()),
      slots_{StepSlot(state_), StepSlot(state_)},
      clock_start_(runtime.device().create_event(EventKind::timed)),
      idle_until_(runtime.device().create_event(EventKind::timed)) {}

void StepRunner::warm_up() {
    work_ = WarmUp(state_, microbatches_, slots_[0]).run();
}

int64_t StepRunner::first_steady_step() const {
    const int64_t last_switch = state_.schedule.state().scales().switch_steps().back(),
                  period = state_.period;
    return (last_switch + period - 1) / period * period;
}

void StepRunner::trace(Timeline* timeline) {
    timeline_ = timeline;
    microbatches_.trace(timeline);
    state_.schedule.trace(timeline);
}

void StepRunner::start_clock() {
    state_.runtime.synchronize();
    state_.runtime.compute().record(*clock_start_);
    last_clock_ms_ = 0;
    state_.reducer.meter().clear();
    last_counts_ = state_.reducer.counts();
    for (const Communicator* values : state_.value_communicators())
        last_counts_ = last_counts_ + values->counts();
}

void StepRunner::enqueue(int64_t step, BatchSource& source, bool stop) {
    if (uncollected() >= static_cast<int64_t>(slots_.size()))
        throw_internal("step {}: two steps are uncollected", step);
    const RunStage& stage = state_.stage_of(step);
    const Microbatch first = microbatches_.first_of(stage, step);
    StepSlot& slot = slots_[enqueued_ % slots_.size()];
    slot.step = step;
    slot.lr_factor = first.lr_factor;
    if (timeline_) timeline_->begin_step(step);
    if (state_.ranks.size() > 1) state_.runtime.compute().record(*slot.started);
    state_.reducer.meter().turn(state_.ranks.size() > 1);  // a single rank has no communication to expose
    state_.refresh_copies_before(step);
    state_.schedule.state().scales().begin_step(step);
    slot.targets = microbatches_.run_step(stage, first, source);
    slot.enqueue_update(state_, stop);
    state_.reducer.meter().turn(false);
    ++enqueued_;
    state_.steps = step + 1;
}

double StepRunner::idle_ms() {
    if (enqueued_ == 0) return 0;
    const Event& done = *slots_[(enqueued_ - 1) % slots_.size()].step_done;
    if (!done.complete()) return 0;
    state_.runtime.compute().record(*idle_until_);
    state_.runtime.compute().synchronize();
    return idle_until_->elapsed_ms_since(done);
}

}  // namespace speedrun
