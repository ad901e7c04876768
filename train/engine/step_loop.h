// Training steps for benchmarks.
#pragma once

#include <functional>
#include <vector>

#include "train/engine/step_runner.h"

namespace speedrun {

// Runs steps as the trainer does: one step is enqueued ahead of the one collected. Both arguments must outlive the
// loop.
class StepLoop {
  public:
    StepLoop(StepRunner& runner, BatchSource& source) : runner_(runner), source_(source) {}

    // Returns the times of the steps in ms. enqueued: called with the step's number after each enqueue.
    std::vector<double> run(int64_t count, const std::function<void(int64_t)>& enqueued = {}) {
        std::vector<double> times;
        runner_.start_clock();
        for (int64_t i = 0; i < count; ++i) {
            runner_.enqueue(next_, source_);
            if (enqueued) enqueued(next_);
            ++next_;
            if (runner_.uncollected() == 2) times.push_back(runner_.collect().step_ms);
        }
        while (runner_.uncollected() > 0) times.push_back(runner_.collect().step_ms);
        return times;
    }

  private:
    StepRunner& runner_;
    BatchSource& source_;
    int64_t next_ = 0;
};

// Appends means over whole periods of steps. Skips the first step, the loop's lead-in.
inline void add_periods(const std::vector<double>& times, int64_t period, std::vector<double>& means) {
    for (size_t i = 1; i + period <= times.size(); i += period) {
        double sum = 0;
        for (size_t k = i; k < i + period; ++k) sum += times[k];
        means.push_back(sum / static_cast<double>(period));
    }
}

}  // namespace speedrun
