// ScaleStore: the scales that a step leaves for the next one (KeptScale), on the device. Nodes read a step's scale and note the
// largest magnitude that they meet; behind the step's last microbatch what all ranks have noted becomes the next step's scales.
// A scale is one number on all ranks, for all microbatches of a step and whatever is computed again, and does not depend on
// how many of either there are.
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

    // Where the run begins to go by a scale that its steps have left: steps in which other scales are exact than in the step
    // before, from 0 on, ascending.
    std::vector<int64_t> turns() const;
    // Passes that are enqueued from here on are of this step.
    void set_step(int64_t step) { step_ = step; }
    // … and wait, on compute, for its scales.
    void begin_step(int64_t step);

    // Does this step go by the magnitudes that it meets itself?
    bool exact(int id) const { return step_ < scales_[static_cast<size_t>(id)].exact_steps; }
    int64_t num_exact() const;
    // f32 [1]: what numbers are divided by, and the largest magnitude so far in this step.
    Tensor scale(int id) const { return at(id); }
    Tensor amax(int id) const { return at(count() + id); }

    // Behind a step's last microbatch, on the reduce stream, which waits for compute by then.
    void renew();
    // Enqueues the state of step 0 on the stream: scales of 1.
    void reset(Stream& stream);
    // Copies of the scales that are enqueued on the stream between the two calls read those after the last step.
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
    Buffer memory_;  // scales, largest magnitudes, factors
    const std::unique_ptr<Event> renewed_, copied_;
    int64_t step_ = 0;
};

}  // namespace speedrun
