// All optimizers of a run: which group takes which parameter, and what happens to each region from the moment
// its gradient is complete: reduced over the ranks on the reduce stream, stepped in reverse order of
// declaration on the optimizer stream, gathered on the gather stream, awaited by the next forward unit by
// unit. Ordered by events alone.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "train/distributed/reducer.h"
#include "train/distributed/unsharder.h"
#include "train/optim/optimizer.h"
#include "train/trace/timeline.h"

namespace speedrun {

// The group index of each parameter: the first group with a pattern (shell wildcards) that matches its name.
// Throws a usage error naming every parameter that no group takes, a group that takes none, and a vector
// given to muon.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

// How the parameters of these groups lie in memory when these ranks share it.
RegionRules region_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config);

class OptimizerSet {
  public:
    // Statistics of a step on the device, f32. Sums over all ranks, once read: [loss sum of this rank, loss
    // sum, ranks that ask to stop, gradient norm, clip coefficient, the norm_term of each region].
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
    // By optimizer group: does its gradient begin anew with this step? Groups of `every: k` do so every k-th.
    std::vector<bool> fresh_groups(int64_t step) const;
    // The last contribution of this microbatch to the gradient of p has been enqueued on compute.
    void gradient_ready(const Parameter& p);
    // So has the last read of its value by backward: p may be stepped from there on.
    void value_released(const Parameter& p);
    // Enqueues, on other streams than compute, the reduction of the regions that p completed; under
    // `launch: after_backward` they wait for the end of backward. After gradient_ready.
    void reduce(const Parameter& p);
    void end_microbatch();
    // After the last microbatch: enqueues the norm, and (unless backward has done so) the step of every
    // region that is due, in the plan's step_order. A region waits for its own reduction alone, unless the
    // gradients are clipped by the norm of all of them. stop: this rank asks to end the run.
    void step(bool stop, Event& backward_done, Event& reduce_done);
    // Enqueues the copy of the statistics to the host; `done` is recorded behind it.
    void read_statistics(float* host, const Event& reduce_done, Event& done);
    // Makes the compute stream wait until this unit's parameters have been stepped, on all ranks, and are
    // here.
    void await_unit(int unit, Pass pass);
    // Enqueues the state of step 0 on the compute stream.
    void reset();
    // What a checkpoint holds of a region, for this rank's part: the master, then its optimizer's state.
    std::vector<StatePart> state(const Region& region) const;
    // Calls `copy`, which enqueues reads of the state, for every region on the copy stream behind the last
    // step; the next step of a region waits for its copy alone.
    void copy_state(const std::function<void(const Region&, Stream&)>& copy);
    // The compute copies of all regions from all ranks, after the masters have been set. Waits.
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
    const RegionLayout& layout() const { return layout_; }
    const Reducer& reducer() const { return reducer_; }

  private:
    bool due(const Region& region) const;
    bool syncs(const Region& region) const;
    bool by_norm_of_all() const;
    void await_memory(const Region& region);
    void launch(const Region& region);
    void launch_waiting(const Event& backward_done);
    void step_region(const Region& region);

    const OptimizersConfig config_;
    const VectorNorm norm_;  // of all gradients together: limited and logged
    const ParameterTable& table_;
    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Runtime& runtime_;
    const RegionLayout& layout_;
    Reducer reducer_;
    Unsharder unsharder_;
    const bool in_backward_;
    Microbatch microbatch_;
    std::vector<std::unique_ptr<Optimizer>> optimizers_;
    Buffer statistics_;
    int64_t num_statistics_ = 0, local_terms_ = 0,
            region_scales_ = 0;     // the latter two: indices behind kNormTerms
    const std::vector<int> order_;  // of regions, as they are stepped and gathered
    // By region: parameters whose gradient is not ready, and whose value backward still reads.
    std::vector<int> pending_, unreleased_;
    std::vector<std::vector<int>> completes_;  // by parameter: regions it completed
    std::vector<int> waiting_;                 // regions that are launched after backward
    std::vector<std::vector<int>> regions_of_unit_;
    std::vector<std::unique_ptr<Event>> raw_, free_, released_, reduced_, stepped_, gathered_,
        copied_;  // by region
    std::unique_ptr<Event> read_, microbatch_done_;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
