// BucketSchedule: orders the work of a step by bucket. The executor announces its passes (PassTracker). A complete
// gradient is reduced on the reduce stream. Then its bucket is updated on the optimizer stream and gathered on the
// gather stream. The next forward waits for each unit's buckets. Only events order the streams.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/graph_capture.h"
#include "kernels/runtime/section_graphs.h"
#include "train/sharding/parameter_gatherer.h"
#include "train/sharding/pass_tracker.h"
#include "train/sharding/sharded_state.h"
#include "train/sharding/step_numbers.h"
#include "train/sharding/step_statistics.h"
#include "train/trace/timeline.h"

namespace speedrun {

struct Microbatch {
    int64_t step = 0;                   // number in the run
    double lr_factor = 1;               // factor of the schedule at this step
    StagePoint point = {};              // position in the schedule
    ParameterId unused = kNoParameter;  // parameter that the model does not use: no gradient, no update
    bool first = true, last = true;     // microbatch of the step
};

// Work of streams other than compute, or a wait of compute for such work. A captured microbatch repeats it at each launch.
struct BucketWork {
    enum class Kind : uint8_t {
        reduce,            // a bucket
        reduce_pending,    // complete buckets not reduced yet; after the microbatch
        hold,              // marks a bucket for reduce_pending
        update,            // a bucket
        fetch_missing,     // parameters of a stage
        fetch_ahead,       // parameters of the next stage
        await_memory,      // gradient memory of a bucket
        await_unit,        // updated and gathered parameters of a unit
        await_parameters,  // gathered parameters of a stage
    };
    Kind kind;
    int index = 0;  // bucket, unit or stage
};
using CapturedMicrobatch = CapturedGraphs<BucketWork>;

// Copies from the device to the host.
struct HostCopy {
    Tensor from;
    void* to;
};
struct StateCopies {
    std::vector<std::vector<HostCopy>> buckets;  // index: bucket
    std::vector<HostCopy> scales;
};

class BucketSchedule final : public PassTracker {
  public:
    // `table` and `stores` must outlive it.
    BucketSchedule(const OptimizersConfig& config, const ParameterTable& table, const Ranks& ranks,
                   const UpdateStores& stores);

    // Call before the passes of a microbatch.
    void begin_microbatch(const Microbatch& microbatch);
    // Call after the passes of a microbatch.
    void end_microbatch();
    // Captures the work that `enqueue` enqueues for a microbatch. Returns null if the device cannot capture.
    std::unique_ptr<CapturedMicrobatch> capture(const std::function<void()>& enqueue) {
        return capture_.capture(enqueue);
    }
    // Enqueues a captured microbatch, instead of passes between begin_microbatch() and end_microbatch().
    void launch(const CapturedMicrobatch& captured);
    // Captures the work of step() on the optimizer stream, after the last microbatch of such a step. Requires that a step has
    // run. A single rank's is one graph, if steps of all its groups differ only in numbers. Several ranks communicate between
    // graphs of the matrices' transforms.
    void capture_step(const Microbatch& last);
    // Selects whether later steps launch these graphs.
    void use_graphs(bool use) { sections_.use(use); }
    size_t num_step_graphs() const { return sections_.size(); }
    void enter(int unit, Pass pass) override;

    // Call after the last microbatch. Enqueues the norm, and the update of every due bucket that was not updated in
    // backward. A bucket waits for its own reduction, or for all reductions if gradients are clipped by their norm.
    void step(Event& backward_done, Event& reduce_done);
    // Enqueues the copy of the statistics to the host, and records `done` after it.
    void read_statistics(float* host, const Event& reduce_done, Event& done);
    const StepStatistics& statistics() const { return statistics_; }

    ShardedState& state() { return state_; }
    const ShardedState& state() const { return state_; }
    // Enqueues copies of the state after the last step on the copy stream. The next update of a bucket waits only for
    // that bucket's copies.
    void copy_state(const StateCopies& copies);
    // Copies master, optimizer state and compute copy of `from` to `to`, on the optimizer stream of all ranks, after
    // the last step. Each parameter has its own bucket, both in one optimizer group.
    void copy(const Parameter& from, const Parameter& to);
    // Gathers the compute copies of all buckets after a change of the masters. Waits.
    void gather_all();
    // Enqueues the gather of a bucket with sharded storage, outside a pass.
    void gather(const Bucket& bucket);

    // Marks later work in the timeline; null: stops.
    void trace(Timeline* timeline);

  private:
    using Events = std::vector<std::unique_ptr<Event>>;  // index: bucket

    void on_bucket_begin(const Bucket& bucket) override;
    void on_grad_ready(const Parameter& p) override;
    void on_param_free(const Parameter& p) override;

    const OptimizerGroupConfig& group_of(const Bucket& bucket) const {
        return config_.groups[static_cast<size_t>(bucket.group)];
    }
    // True if the bucket is updated at the end of this step.
    bool is_due(const Bucket& bucket) const;
    // True if the gradient reduced after this microbatch is the optimizer's input.
    bool is_final(const Bucket& bucket) const { return microbatch_.last && is_due(bucket); }
    bool is_reduced(const Bucket& bucket) const;  // after this microbatch

    void enqueue(BucketWork work);
    void await(BucketWork work);
    void run(BucketWork work);
    void await_unit(int unit);
    void await_memory(const Bucket& bucket);
    void fill_gaps(const Bucket& bucket);
    // Numbers of the optimizers at the step of the microbatch.
    void write_numbers();
    void reduce(const Bucket& bucket);
    void reduce_pending(const Event& backward_done);
    void update(const Bucket& bucket);
    void finish_updates(const Event& reduce_done);
    void transform(size_t group);
    // Enqueues norm, clip coefficient and updates of all due buckets, of a single rank after backward.
    void update_all();
    void enqueue_update_all(const std::vector<bool>& due);
    // Returns the due buckets of a group, in this order.
    std::vector<const Bucket*> due_of(size_t group, const std::vector<int>& order) const;
    void gather_updated(const Bucket& bucket);
    StepContext context_of(size_t group, const Tensor& grad_scale) const;
    // A single rank updates all buckets after backward: they share one event.
    Event& updated(int bucket) const { return *updated_[static_cast<size_t>(all_together_ ? 0 : bucket)]; }
    Event& copied(int bucket) const { return *copied_[static_cast<size_t>(all_together_ ? 0 : bucket)]; }
    // Times optimizer work that waits for no other stream.
    template <class Enqueue>
    void time_optimizer(const Enqueue& enqueue) {
        reducer_.meter().time(ExposureMeter::Kind::optimizer, runtime_.optimizer(), enqueue);
    }

    const OptimizersConfig config_;
    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    const BucketLayout& layout_;
    const bool in_backward_, at_ready_;  // updates in backward; reductions launched at grad_ready
    const bool by_norm_of_all_;          // every update waits for the norm of all gradients
    const bool all_together_;            // a single rank, which updates after backward
    GraphCapture<BucketWork> capture_;
    SectionGraphs sections_;
    Events ready_, memory_free_, values_free_, reduced_, updated_, gathered_, copied_;
    ParameterGatherer gatherer_;
    StepStatistics statistics_;
    ShardedState state_;
    const bool replays_;  // steps differ only in numbers_
    StepNumbers numbers_;
    Microbatch microbatch_;
    const std::vector<int> order_;  // bucket ids in the order of updates and gathers
    std::vector<std::vector<int>> buckets_of_unit_;
    std::vector<int> missing_grads_, read_values_;  // numbers of parameters; index: bucket
    std::vector<const Bucket*> pending_;            // complete, reduced after backward
    std::unique_ptr<Event> microbatch_done_;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
