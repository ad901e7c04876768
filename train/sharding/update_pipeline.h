// UpdatePipeline: what happens to each bucket from the moment its gradient is complete: reduced over the
// ranks on the reduce stream, stepped on the optimizer stream, gathered on the gather stream, awaited by the
// next forward unit by unit. Ordered by events alone. It observes the model's passes and tells nobody.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/runtime/graph_capture.h"
#include "train/sharding/gradient_sync.h"
#include "train/sharding/group_update.h"
#include "train/sharding/scale_store.h"
#include "train/sharding/step_statistics.h"
#include "train/sharding/unsharder.h"
#include "train/trace/timeline.h"

namespace speedrun {

// What the pipeline works on; all of it outlives the pipeline.
struct UpdateContext {
    const ParameterTable& table;
    const Ranks& ranks;
    UpdateStores stores;
    GraphCapture& capture;
};

// What is done with the state of each bucket, and with the scales.
struct StateCopy {
    std::function<void(const Bucket&, Stream&)> bucket;
    std::function<void(Stream&)> scales;
};

class UpdatePipeline final : public PassObserver {
  public:
    // Observes the gradients from here on.
    UpdatePipeline(const OptimizersConfig& config, const UpdateContext& context);
    ~UpdatePipeline() override { gradients_.observe(nullptr); }
    UpdatePipeline(const UpdatePipeline&) = delete;
    UpdatePipeline& operator=(const UpdatePipeline&) = delete;

    // What the microbatch that is about to be enqueued is, of which step.
    struct Microbatch {
        int64_t step = 0;
        double lr_factor = 1;  // of the schedule
        StagePoint point = {};
        bool first = true, last = true;
    };
    void begin_microbatch(const Microbatch& microbatch);
    // Makes compute wait for the parameters that forward of this unit reads. No effect if they are stored sharded.
    void await_unit(int unit);
    void entered(int unit, Pass pass) override;
    void begun(const Bucket& bucket) override;
    void ready(const Parameter& p) override;
    void released(const Parameter& p) override;
    // Behind the last pass of a microbatch.
    void end_microbatch();
    // After the last microbatch: enqueues the norm, and (unless backward has done so) the step of every
    // bucket that is due, in step_order. A bucket waits for its own reduction alone, unless the
    // gradients are clipped by the norm of all of them.
    void step(Event& backward_done, Event& reduce_done);
    // Enqueues the copy of the statistics to the host; `done` is recorded behind it.
    void read_statistics(float* host, const Event& reduce_done, Event& done);
    const StepStatistics& statistics() const { return statistics_; }
    ScaleStore& scales() { return scales_; }
    const ScaleStore& scales() const { return scales_; }

    // Enqueues the state of step 0 on the compute stream.
    void reset();
    // What a checkpoint holds of a bucket, for this rank's shard: the master, then its optimizer's state.
    std::vector<StateShard> state(const Bucket& bucket) const;
    // Calls `copy`, whose members enqueue reads of the state, for every bucket on the copy stream behind the last
    // step; the next step of a bucket waits for its copy alone.
    void copy_state(const StateCopy& copy);
    // Enqueues that `to` becomes `from` on the optimizer stream, behind the last step, and goes to the ranks that lack it:
    // master, optimizer state, what compute reads. Each is alone in its bucket, in one optimizer group.
    void copy(const Parameter& from, const Parameter& to);
    // The compute copies of all buckets from all ranks, after the masters have been set. Waits.
    void gather_all();
    // Values of p, as compute reads them, that are not finite. All ranks ask for the same. Waits.
    double count_nonfinite(const Parameter& p);
    // Values of all masters that are not finite, in the shards of this rank. Waits.
    double count_nonfinite();
    // Marks what is enqueued from here on in this timeline; null: no longer.
    void trace(Timeline* timeline);

    const BucketLayout& layout() const { return layout_; }
    const Reducer& reducer() const { return reducer_; }

  private:
    void reduce(const Bucket& bucket);
    void reduce_waiting(const Event& backward_done);
    void step_bucket(const Bucket& bucket);
    void finish_steps(const Event& reduce_done);
    void publish(const Bucket& bucket);
    // Times work of the optimizer's stream that waits for no other stream.
    template <class Enqueue>
    void time_optimizer(const Enqueue& enqueue) {
        reducer_.meter().time(ExposureMeter::Kind::optimizer, runtime_.optimizer(), enqueue);
    }
    StepContext context_of(const Bucket& bucket, const Tensor& grad_scale) const;

    const OptimizersConfig config_;
    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    GraphCapture& capture_;
    const BucketLayout& layout_;
    const bool in_backward_, by_norm_of_all_;
    GradientSync sync_;
    Unsharder unsharder_;
    StepStatistics statistics_;
    ScaleStore scales_;
    Microbatch microbatch_;
    const std::vector<std::unique_ptr<GroupUpdate>> groups_;
    const std::vector<int> order_;  // of buckets, as they are stepped and gathered
    std::vector<std::vector<int>> buckets_of_unit_;
    std::vector<const Bucket*> waiting_;  // for the end of backward, to be reduced
    std::vector<std::unique_ptr<Event>> reduced_, stepped_, gathered_, copied_;  // by bucket
    std::unique_ptr<Event> microbatch_done_;
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
