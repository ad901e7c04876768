// StepRunner: runs optimizer steps and validations. It only enqueues; results are collected one step later, so that the
// device never waits for the host.
#pragma once

#include <array>
#include <functional>

#include "data/batch_loader.h"
#include "train/engine/microbatch_runner.h"
#include "train/engine/step_slot.h"
#include "train/engine/step_work.h"

namespace speedrun {

struct StepResult {
    int64_t step = 0;
    double loss = 0;       // nats per valid target, before the update
    double grad_norm = 0;  // global, before clipping
    double lr_factor = 0;
    double step_ms = 0;          // from the end of the previous step (or clock start) to the end of this one
    double optimizer_ms = 0;     // part of step_ms in which compute waits, without comm_exposed_ms
    double comm_exposed_ms = 0;  // part of step_ms: exposed(), see train/trace/intervals.h
    double comm_ms = 0;          // sum of all collectives in the step; at least comm_exposed_ms
    CollectiveCounts communication{};  // this rank's, since the previous step; gathers are this step's
    double copy_stall_ms = 0;  // from the end of backward to the end of the previous step's snapshot copy
    double clock_ms = 0;       // from the clock's start to the end of this step
    bool stop = false;         // a rank asked to stop; equal on all ranks
};

class StepRunner {
  public:
    // Collective: all ranks construct their runners together. Default: a single rank.
    StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks = kAlone);
    ~StepRunner() { state_.runtime.drain(); }
    StepRunner(const StepRunner&) = delete;
    StepRunner& operator=(const StepRunner&) = delete;

    TrainState& state() { return state_; }

    // See WarmUp::run(). Required before TrainState::initialize().
    void warm_up();
    // Returns the work of one step of a stage, as warm_up() counted it.
    const StepWork& work_per_step(int64_t stage = 0) const { return work_[static_cast<size_t>(stage)]; }
    // Selects whether later steps run as the graphs that warm_up() captured. Results are bitwise equal.
    void use_graphs(bool use) { microbatches_.use_graphs(use); }
    bool has_graphs() const { return microbatches_.has_graphs(); }
    // Number of steps with a microbatch that has no graph, since warm_up() captured graphs.
    int64_t ungraphed_steps() const { return microbatches_.ungraphed_steps(); }
    // Marks later steps in the timeline; null: stops.
    void trace(Timeline* timeline);

    // Returns the first step of a period, from step 0 or later, after the last switch from current to delayed FP8 scaling.
    int64_t first_steady_step() const;

    // Starts timed work. Waits for all earlier work.
    void start_clock();
    // Enqueues a step. At most two steps may be uncollected. stop: this rank asks to end the run.
    void enqueue(int64_t step, BatchSource& source, bool stop = false);
    // Waits for the oldest uncollected step. Throws Error(diverged) with the first bad parameter if its loss or
    // gradient norm is not finite; parameters then keep their values from before that step.
    StepResult collect();
    int64_t uncollected() const { return enqueued_ - collected_; }
    // Returns the ms since the end of the last enqueued step; 0 if it has not ended.
    double idle_ms();

    // Returns the mean loss in nats over the targets of the validation stream. Collective. Waits. Calls `progressed`,
    // if set, after each batch.
    double validate(const ValidationLoader& loader, const std::function<void()>& progressed = {});

  private:
    void add_parts(const StepSlot& slot, StepResult& result);
    [[noreturn]] void report_divergence(const StepSlot& slot);

    TrainState state_;
    MicrobatchRunner microbatches_;
    std::vector<StepWork> work_;  // index: stage
    std::array<StepSlot, 2> slots_;
    const std::unique_ptr<Event> clock_start_, idle_until_;
    Timeline* timeline_ = nullptr;
    int64_t enqueued_ = 0, collected_ = 0;
    double last_clock_ms_ = 0;
    CollectiveCounts last_counts_{};  // counts at the last collected step
};

}  // namespace speedrun
