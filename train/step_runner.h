// StepRunner: model, gradients and optimizers as one machine that runs optimizer steps and validations. It
// only enqueues; results of a step are collected one step later, so that the device never waits for the host.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "data/batch_loader.h"
#include "train/model/transformer.h"
#include "train/optim/optimizer_set.h"

namespace speedrun {

// Where a step's batches come from, one microbatch per call; the reference holds until the next call.
class BatchSource {
  public:
    virtual ~BatchSource() = default;
    virtual const Batch& next() = 0;
};

struct StepResult {
    int64_t step = 0;
    double loss = 0;       // nats per token, of the parameters before the step
    double grad_norm = 0;  // global, before clipping
    double lr_factor = 0;
    double step_ms = 0;          // from the end of the step before (or clock start) to the end of this one
    double optimizer_ms = 0;     // of that, after backward had ended
    double comm_exposed_ms = 0;  // of that, until all gradients were reduced over the ranks
    double clock_ms = 0;         // from the clock's start to the end of this step
    bool stop = false;           // a rank asked to stop; all ranks learn it of the same step
};

inline const Ranks kAlone{};

class StepRunner {
  public:
    // All ranks make theirs at the same time. By default one rank, alone.
    StepRunner(const Config& config, Runtime& runtime, const Ranks& ranks = kAlone);
    ~StepRunner() { runtime_.drain(); }
    StepRunner(const StepRunner&) = delete;
    StepRunner& operator=(const StepRunner&) = delete;

    Transformer& model() { return model_; }
    GradientStore& gradients() { return gradients_; }
    int64_t tokens_per_step() const { return config_.batch.tokens_per_step; }
    // Floating-point operations of one step: known after warm_up().
    int64_t flops_per_step() const { return flops_per_step_; }

    // Runs every shape of operation once on dummy data: call before initialize(), which overwrites all it
    // touched.
    void warm_up();
    // Initial parameters and optimizer state of this seed.
    void initialize(uint64_t seed);
    // After it: other parameters, host values by parameter id. All ranks give the same.
    void assign(const std::vector<std::vector<float>>& values);

    // Forward and backward of later steps: as recorded graphs where warm_up() could record them, or call by
    // call (needed while the device is traced). Same bits either way.
    void use_graphs(bool use) { use_graphs_ = use; }
    bool has_graphs() const { return graphs_[0] || graphs_[1] || graphs_[2] || graphs_[3]; }

    // Marks the begin of timed work; everything before has been synchronised.
    void start_clock();
    // Enqueues optimizer step `step`. At most two steps may be uncollected. stop: this rank asks to end the
    // run.
    void enqueue(int64_t step, BatchSource& source, bool stop = false);
    // Waits for the oldest uncollected step. Throws Error(diverged), naming the first bad parameter, if its
    // loss or gradient is not finite; the parameters are then still those before that step.
    StepResult collect();
    int64_t uncollected() const { return enqueued_ - collected_; }

    // Mean loss over the validation stream, in nats per token, shared among the ranks. Synchronises.
    double validate(const ValidationLoader& loader);
    // The f32 values of a parameter, on the host; all ranks ask for the same. Waits.
    void read_master(const Parameter& p, void* host) { optimizers_.read_master(p, host); }
    // To other ranks, so far.
    int64_t bytes_sent() const { return optimizers_.reducer().bytes_sent(); }

  private:
    struct Slot {
        int64_t step = 0;
        double lr_factor = 0;
        HostBuffer memory;
        float* statistics = nullptr;  // in memory
        std::unique_ptr<Event> backward_done, reduce_done, step_done;
    };

    void upload(const Batch& batch);
    void run_microbatches(BatchSource& source);
    // Forward and backward of the uploaded batch. The first of a step overwrites gradients and loss sum, the
    // last announces each gradient.
    void run_microbatch(bool first, bool last);
    void enqueue_model(bool first, bool last);
    void record_graphs();
    std::unique_ptr<Graph>& graph_of(bool first, bool last) {
        return graphs_[(first ? 1 : 0) + (last ? 2 : 0)];
    }
    void enqueue_optimizer(Slot& slot, bool stop);
    [[noreturn]] void report_divergence(const Slot& slot);

    const Config config_;
    Runtime& runtime_;
    const Ranks ranks_;
    const int64_t microbatches_;  // of this rank, per step
    Transformer model_;
    GradientStore gradients_;
    OptimizerSet optimizers_;
    std::unique_ptr<Event> uploaded_, clock_start_;
    HostBuffer staging_;  // of one microbatch's tokens, targets, positions and first keys
    std::array<std::unique_ptr<Graph>, 4> graphs_;
    std::vector<const Parameter*> ready_order_;  // in which a recorded backward announces the gradients
    bool use_graphs_ = true, recording_ = false;
    std::array<Slot, 2> slots_;
    int64_t enqueued_ = 0, collected_ = 0;
    double last_clock_ms_ = 0;
    bool last_microbatch_ = false;
    int64_t flops_per_step_ = 0;
};

}  // namespace speedrun
