// All optimizers of a run: which group takes which parameter, and what happens to each bucket from the moment
// its gradient is complete: reduced over the ranks on the reduce stream, stepped in reverse order of
// declaration on the optimizer stream, gathered on the gather stream, awaited by the next forward unit by
// unit. Ordered by events alone.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "train/optim/optimizer.h"
#include "train/sharding/gradient_sync.h"
#include "train/sharding/unsharder.h"
#include "train/trace/timeline.h"

namespace speedrun {

// The group index of each parameter: the first group with a pattern (shell wildcards) that matches its name.
// Throws a usage error naming every parameter that no group takes, a group that takes none, and a vector
// given to muon.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

// How the parameters of these groups lie in memory when these ranks share it.
BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config);

class OptimizerSet {
  public:
    // Statistics of a step on the device, f32. Sums over all ranks, once read: [loss sum of this rank, loss
    // sum, ranks that ask to stop, gradient norm, clip coefficient, the norm_term of each bucket].
    static constexpr int64_t kLossSum = 0, kLossTotal = 1, kStop = 2, kGradNorm = 3, kCoefficient = 4,
                             kNormTerms = 5;

    // What it is given must outlive it. All ranks make theirs at the same time.
    OptimizerSet(const OptimizersConfig& config, const ParameterTable& table, const Ranks& ranks,
                 ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);

    // What the microbatch that is about to be enqueued is, of which step.
    struct Microbatch {
        int64_t step = 0;
        double lr_factor = 1;  // of the schedule
        bool first = true, last = true;
    };
    void begin_microbatch(const Microbatch& microbatch);
    // Where backward announces gradients, and the end of a microbatch.
    GradientSync& sync() { return sync_; }
    // After the last microbatch: enqueues the norm, and (unless backward has done so) the step of every
    // bucket that is due, in the plan's step_order. A bucket waits for its own reduction alone, unless the
    // gradients are clipped by the norm of all of them. stop: this rank asks to end the run.
    void step(bool stop, Event& backward_done, Event& reduce_done);
    // Enqueues the copy of the statistics to the host; `done` is recorded behind it.
    void read_statistics(float* host, const Event& reduce_done, Event& done);
    // Makes the compute stream wait until this unit's parameters have been stepped, on all ranks, and are
    // here.
    void await_unit(int unit, Pass pass);
    // Enqueues the state of step 0 on the compute stream.
    void reset();
    // What a checkpoint holds of a bucket, for this rank's part: the master, then its optimizer's state.
    std::vector<StatePart> state(const Bucket& bucket) const;
    // Calls `copy`, which enqueues reads of the state, for every bucket on the copy stream behind the last
    // step; the next step of a bucket waits for its copy alone.
    void copy_state(const std::function<void(const Bucket&, Stream&)>& copy);
    // The compute copies of all buckets from all ranks, after the masters have been set. Waits.
    void gather_all();
    // Values of p, as compute reads them, that are not finite. All ranks ask for the same. Waits.
    double count_nonfinite(const Parameter& p);
    // Marks what is enqueued from here on in this timeline; null: no longer.
    void trace(Timeline* timeline);
    // The f32 values of p, on the host, whoever holds them. All ranks ask for the same. Waits.
    void read_master(const Parameter& p, void* host);

    Tensor statistics() const { return statistics_.tensor(DType::f32, {num_statistics_}); }
    Tensor statistic(int64_t index, int64_t count = 1) const {
        return statistics_.tensor(DType::f32, {count}, index * size_of(DType::f32));
    }
    const BucketLayout& layout() const { return layout_; }
    const Reducer& reducer() const { return reducer_; }

  private:
    void take_norm(const Bucket& bucket);
    void step_bucket(const Bucket& bucket);
    void finish_steps(const Event& reduce_done);
    void publish(const Bucket& bucket);
    StepContext context_of(const Bucket& bucket, const Tensor& grad_scale) const;

    const OptimizersConfig config_;
    const VectorNorm norm_;  // of all gradients together: limited and logged
    const ParameterTable& table_;
    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    const BucketLayout& layout_;
    Reducer reducer_;
    const bool in_backward_, by_norm_of_all_;
    GradientSync sync_;
    Unsharder unsharder_;
    Microbatch microbatch_;
    std::vector<std::unique_ptr<Optimizer>> optimizers_;
    Buffer statistics_;
    int64_t num_statistics_ = 0, local_terms_ = 0,
            bucket_scales_ = 0;     // the latter two: indices behind kNormTerms
    const std::vector<int> order_;  // of buckets, as they are stepped and gathered
    std::vector<std::vector<int>> buckets_of_unit_;
    std::vector<std::unique_ptr<Event>> reduced_, stepped_, gathered_, copied_;  // by bucket
    std::unique_ptr<Event> read_;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
