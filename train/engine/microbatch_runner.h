// MicrobatchRunner: enqueues the microbatches of a step: upload of a batch, then forward and backward, call by call or
// as captured graphs.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "data/batch.h"
#include "train/engine/train_state.h"

namespace speedrun {

// Source of the batches of steps: one microbatch per call, completed for the model of the step (complete()). The reference
// is valid until the next call. All ranks state the same Batch::step_targets: the runner throws a data error for 0, and an
// internal error if microbatches of a step differ in it.
class BatchSource {
  public:
    virtual ~BatchSource() = default;
    virtual const Batch& next() = 0;
};

class MicrobatchRunner {
  public:
    // The state must outlive it.
    explicit MicrobatchRunner(TrainState& state) : state_(state) {}

    // Returns the first microbatch of a step.
    Microbatch first_of(const RunStage& stage, int64_t step) const;
    // Enqueues all microbatches of a step, from `first`. Returns the valid targets of the step, on all ranks.
    int64_t run_step(const RunStage& stage, const Microbatch& first, BatchSource& source);

    // Captures graphs of the stage's microbatches, in each step of a period, for batches in which all targets count; others run
    // call by call. Captures the updates of these steps too. Requires that a step of the stage has run.
    void capture(const RunStage& stage);
    // Selects whether later microbatches and updates run as captured graphs. Both ways enqueue the same work.
    void use_graphs(bool use) {
        use_graphs_ = use;
        state_.schedule.use_graphs(use);
    }
    bool has_graphs() const { return !graphs_.empty(); }
    int64_t ungraphed_steps() const { return ungraphed_steps_; }

    // Marks the phase in the timeline, on the model's streams.
    void mark(Phase phase);
    void trace(Timeline* timeline) { timeline_ = timeline; }

  private:
    // Microbatches with equal keys enqueue the same work. Key: model, first, last, step in the period, valid targets of
    // the step, number of tensors with current scaling.
    using GraphKey = std::tuple<size_t, bool, bool, int64_t, int64_t, int64_t>;
    GraphKey key_of(size_t model, const Microbatch& microbatch, int64_t step_targets) const;

    // Runs forward and backward of the uploaded batch. The first microbatch of a step overwrites gradients and loss
    // sum. Computes gradients of sum(losses) / step_targets.
    void run(size_t model, const Microbatch& microbatch, int64_t step_targets);
    void enqueue(size_t model, const Microbatch& microbatch, int64_t step_targets);
    // Copies a batch to the model with the loss weights of `point`, and passes the table rows that it reads to the
    // reducer.
    void upload(const Batch& batch, Transformer& model, const StagePoint& point);

    TrainState& state_;
    std::map<GraphKey, std::unique_ptr<CapturedMicrobatch>> graphs_;
    bool use_graphs_ = true;
    int64_t ungraphed_steps_ = 0, last_ungraphed_ = -1;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
