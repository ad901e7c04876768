// The clock of a record attempt: training time excludes start-up and validation. Also the statistics of step times.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace speedrun {

class TrainClock {
  public:
    // Segments of training time. The caller must synchronise the device directly before start() and stop().
    void start() { begin_ = std::chrono::steady_clock::now(); }
    // Continues a run: `finished_ms` is its previous training time.
    void continue_from(double finished_ms) { finished_ms_ = finished_ms; }
    void stop() { finished_ms_ += current_ms(); }
    // Time of all finished segments, without the current one.
    double finished_ms() const { return finished_ms_; }

  private:
    double current_ms() const {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
    }
    std::chrono::steady_clock::time_point begin_;
    double finished_ms_ = 0;
};

// Milliseconds since the operating system started this process, including loading.
double process_age_ms();

struct StepTime {
    int64_t step = 0;
    double ms = 0;
};

class StepTimes {
  public:
    void add(StepTime time);
    bool empty() const { return times_.empty(); }
    size_t size() const { return times_.size(); }
    double percentile(double share) const;  // 0.5: the median; nearest rank
    double max() const { return max_; }
    int64_t max_step() const { return max_step_; }

  private:
    std::vector<double> times_;
    double max_ = 0;
    int64_t max_step_ = -1;
};

}  // namespace speedrun
