// StepRunner: model, gradients and optimizers as one machine that runs optimizer steps and validations. It
// only enqueues; results of a step are collected one step later, so that the device never waits for the host.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "data/batch_loader.h"
#include "kernels/runtime/graph_capture.h"
#include "train/checkpoint/run_state.h"
#include "train/engine/run_stages.h"
#include "train/engine/step_work.h"
#include "train/model/transformer.h"
#include "train/sharding/read_master.h"
#include "train/sharding/stop_signal.h"
#include "train/sharding/update_pipeline.h"

namespace speedrun {

// Source of the batches of steps: one microbatch per call, completed for the model of the step (complete()). The reference
// is valid until the next call. All ranks state the same Batch::step_targets: the runner throws a data error for 0, and an
// internal error if microbatches of a step differ in it.
class BatchSource {
  public:
    virtual ~BatchSource() = default;
    virtual const Batch& next() = 0;
};

struct StepResult {
    int64_t step = 0;
    double loss = 0;       // nats per valid target, of the parameters before the step
    double grad_norm = 0;  // global, before clipping
    double lr_factor = 0;
    double step_ms = 0;          // from the end of the step before (or clock start) to the end of this one
    double optimizer_ms = 0;     // part of step_ms: compute waited, without comm_exposed_ms
    double comm_exposed_ms = 0;  // part of step_ms: exposed(), see train/trace/intervals.h
    double comm_ms = 0;          // sum of all collectives in the step; at least comm_exposed_ms
    CollectiveCounts communication{};  // of this rank, since the step before; its gathers are of this step
    double copy_stall_ms = 0;  // after backward had ended, until a snapshot of the step before was taken
    double clock_ms = 0;       // from the clock's start to the end of this step
    bool stop = false;         // a rank asked to stop; all ranks learn it of the same step
};

inline const Ranks kAlone{};

class StepRunner final : public RunState {
  public:
    // All ranks make theirs at the same time. By default one rank, alone.
    StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks = kAlone);
    ~StepRunner() override { runtime_.drain(); }
    StepRunner(const StepRunner&) = delete;
    StepRunner& operator=(const StepRunner&) = delete;

    // Of the first stage; all have the same parameters.
    Transformer& model() { return *models_.front(); }
    Transformer& validation_model() { return *models_[stages_.validation.model]; }
    // Of all stages' models, what the one with the most has when it has most.
    BusiestStep busiest_step() const;
    GradientStore& gradients() { return gradients_; }
    // Of one step of a stage: known after warm_up().
    // What ranks that share rows or matrices send each other in a microbatch of this stage.
    CollectiveRow value_collectives(int64_t stage = 0) const {
        const size_t model = stages_.stages[static_cast<size_t>(stage)].model;
        return models_[model]->value_collectives(ranks_.mesh(), runtime_.real());
    }
    const StepWork& work_per_step(int64_t stage = 0) const { return work_[static_cast<size_t>(stage)]; }

    // Runs every shape of operation once on dummy data, or only enqueues it where there is nothing to warm (a
    // CPU without other ranks): call before initialize(), which overwrites all it touched.
    void warm_up();
    // Initial parameters and optimizer state of this seed.
    void initialize(uint64_t seed);
    // After it: other parameters, host values by parameter id. All ranks give the same.
    void assign(const std::vector<std::vector<float>>& values);

    // Forward and backward of later steps: as graphs where warm_up() could capture them, or call by
    // call (needed while a timeline cannot look into graphs). Bits are equal either way, and both may be in
    // one run.
    void use_graphs(bool use) { use_graphs_ = use; }
    bool has_graphs() const { return !graphs_.empty(); }

    // Marks the steps enqueued from here on in this timeline; null: no longer.
    void trace(Timeline* timeline);

    // After so many steps, has every optimizer group stepped on all gradients there were? Those that groups
    // of `every: k` have summed up in between are in no checkpoint.
    bool between_periods(int64_t steps) const { return steps % period_ == 0; }
    // The steps after which all groups are where they were; more than 1 with groups of `every: k`.
    int64_t period() const { return period_; }

    // Marks the begin of timed work; everything before has been synchronised.
    void start_clock();
    // Enqueues optimizer step `step`. At most two steps may be uncollected. stop: this rank asks to end the
    // run.
    void enqueue(int64_t step, BatchSource& source, bool stop = false);
    // Waits for the oldest uncollected step. Throws Error(diverged), naming the first bad parameter, if its
    // loss or gradient is not finite; the parameters are then still those before that step.
    StepResult collect();
    int64_t uncollected() const { return enqueued_ - collected_; }

    // "NAME (2 of 64 values are not finite)", the first in the table; empty: all are finite. All ranks call it. Waits.
    std::string first_bad_parameter();
    // Throws Error(diverged) with the name of the first bad parameter if one is not finite after `steps` steps. All ranks
    // call it between steps. Waits.
    void expect_finite_parameters(int64_t steps);
    // Mean loss over the targets of the validation stream, in nats per target, shared among the ranks.
    // Synchronises. Calls progressed, if given, after each batch.
    double validate(const ValidationLoader& loader, const std::function<void()>& progressed = {});
    const ParameterTable& table() const override { return models_.front()->table(); }
    UpdatePipeline& updates() override { return updates_; }
    void snapshot(const StateCopy& copy) override;
    void await_snapshot() override;
    double idle_ms() override;
    void refresh_copies() override;
    void publish_state(int64_t steps) override;
    // The f32 values of a whole parameter (Parameter::whole_numel), on the host; all ranks ask for the same. Waits.
    void read_master(const Parameter& p, float* host) {
        if (p.copy_of >= 0) {
            refresh_copies();
            runtime_.synchronize();
        }
        speedrun::read_master(table()[p.id], models_.front()->parameters(),
                              {.reducer = reducer_, .tensor = tensor_.get()}, runtime_, host);
    }
    // To other ranks, so far.
    int64_t bytes_sent() const;

  private:
    struct Slot {
        int64_t step = 0;
        int64_t targets = 0;  // valid ones, of all ranks
        double lr_factor = 0;
        HostBuffer memory;
        std::unique_ptr<Event> begun, backward_done, reduce_done, step_done;
        Reducer::Counts counts;  // since the ranks connected
        Reducer::Count values;   // of those between nodes of the model

        StepNumbers numbers() const { return StepNumbers(memory.as<float>()); }
        double loss() const { return numbers().loss_sum() / static_cast<double>(targets); }
    };

    struct Snapshot {
        int64_t enqueued = -1;  // steps before it
        std::unique_ptr<Event> copied;
    };

    // Throws a usage error for a copy that cannot take over its source's optimizer state.
    void check_copies() const;
    // What the model of this stage does not use becomes what it is a copy of.
    void copy_resting(const RunStage& stage);
    void wake_copies(int64_t step);  // at the first step of a stage that uses a parameter which rested before
    void mark(Phase phase);          // what the streams of the model are at, for traces
    std::vector<const Communicator*> value_communicators() const;
    bool exchanges_values() const { return context_ || tensor_; }
    // Copies a batch to the model, with the loss weights of this point, and notes the rows that it looks up.
    void put_batch(const Batch& batch, Transformer& model, const StagePoint& point);
    // The model; first, last of the step; the step among those of a period of all optimizer groups; valid targets
    // of the step; how many scales are exact in it.
    using GraphKey = std::tuple<size_t, bool, bool, int64_t, int64_t, int64_t>;

    UpdatePipeline::Microbatch microbatch_of(const RunStage& stage, int64_t step) const;
    // Returns the valid targets of the step, on all ranks.
    int64_t run_microbatches(const RunStage& stage, UpdatePipeline::Microbatch microbatch,
                             BatchSource& source);
    const RunStage& stage_of(int64_t step) const {
        return stages_.stages[static_cast<size_t>(config_.schedule.stage_of(step))];
    }
    // Forward and backward of the uploaded batch. The first of a step overwrites gradients and loss sum, the
    // last announces each gradient. Gradients are those of the sum of losses / step_targets.
    void run_microbatch(size_t model, const UpdatePipeline::Microbatch& microbatch, int64_t step_targets);
    void enqueue_model(size_t model, const UpdatePipeline::Microbatch& microbatch, int64_t step_targets);
    GraphKey key_of(size_t model, const UpdatePipeline::Microbatch& microbatch, int64_t step_targets) const;
    void warm_up_stage(int64_t stage);
    void warm_up_validation();
    void capture_graphs(const RunStage& stage);
    void enqueue_optimizer(Slot& slot, bool stop);
    void add_parts(const Slot& slot, StepResult& result);
    [[noreturn]] void report_divergence(const Slot& slot);

    const Config config_;
    Runtime& runtime_;
    const Ranks ranks_;
    const int64_t period_;  // steps after which all optimizer groups are where they were
    const RunStages stages_;
    std::vector<StepWork> work_;                              // by stage
    const std::vector<std::unique_ptr<Transformer>> models_;  // by shape
    const std::unique_ptr<Communicator> context_;             // among the ranks that share rows, or null
    const std::unique_ptr<Communicator> tensor_;              // among the ranks that share matrices, or null
    GradientStore gradients_;
    Reducer reducer_;
    GraphCapture capture_;
    UpdatePipeline updates_;
    StopSignal stop_signal_;
    std::unique_ptr<Event> clock_start_, idle_until_;
    std::map<GraphKey, std::unique_ptr<CapturedGraphs>> graphs_;
    bool use_graphs_ = true;
    Timeline* timeline_ = nullptr;
    std::array<Slot, 2> slots_;
    int64_t enqueued_ = 0, collected_ = 0;
    int64_t steps_ = -1;                 // trained into the masters; -1: unknown, they were set by a caller
    std::array<Snapshot, 2> snapshots_;  // the last two, by steps enqueued
    int64_t last_snapshot_ = -1;         // steps enqueued before it
    double last_clock_ms_ = 0;
    CollectiveCounts last_counts_{};  // of the step collected last
};

}  // namespace speedrun
