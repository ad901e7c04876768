// ScaleStore: scales of delayed FP8 scaling (KeptScale), on the device. Nodes read a step's scales and record the amax
// of their operands. After the step's last microbatch, the maximum over all ranks sets the next step's scales. A scale
// is equal on all ranks, for all microbatches of a step and for recomputation. It does not depend on the number of
// ranks or microbatches.
#pragma once

#include <memory>
#include <vector>

#include "train/parameters/parameter_table.h"
#include "train/sharding/reducer.h"

namespace speedrun {

class ScaleStore {
  public:
    // The reducer and the runtime must outlive it.
    ScaleStore(const std::vector<KeptScale>& scales, Reducer& reducer, Runtime& runtime);

    // Steps at which a tensor switches from current to delayed scaling, and step 0, ascending.
    std::vector<int64_t> switch_steps() const;
    // Sets the step of passes enqueued from now on.
    void set_step(int64_t step) { step_ = step; }
    // Sets the step, and makes compute wait for its scales.
    void begin_step(int64_t step);

    // True if this step uses current scaling for the tensor.
    bool exact(int id) const { return step_ < scales_[static_cast<size_t>(id)].exact_steps; }
    int64_t num_current_scaling() const;
    // f32 [1]: the divisor, and the amax of this step so far.
    Tensor scale(int id) const { return at(id); }
    Tensor amax(int id) const { return at(count() + id); }

    // Call after a step's last microbatch, when the reduce stream waits for compute.
    void renew();
    // Enqueues the initial state: scales of 1.
    void reset(Stream& stream);
    // Copies of the scales that are enqueued on the stream between the two calls read the scales after the last step.
    void begin_copy(Stream& stream) const;
    void end_copy(Stream& stream);
    const std::vector<KeptScale>& all() const { return scales_; }

  private:
    int64_t count() const { return static_cast<int64_t>(scales_.size()); }
    Tensor at(int64_t index, int64_t size = 1) const {
        return memory_.tensor(DType::f32, {size}, index * size_of(DType::f32));
    }

    const std::vector<KeptScale> scales_;
    Reducer& reducer_;
    Runtime& runtime_;
    Buffer memory_;  // scales, amaxes, factors
    const std::unique_ptr<Event> renewed_, copied_;
    int64_t step_ = 0;
};

}  // namespace speedrun
