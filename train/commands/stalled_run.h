// Detects a run of another process without signs of life.
#pragma once

#include <cstdint>
#include <string>

#include "train/comm/running_clock.h"

namespace speedrun {

// A sign of life is any change in the run's folder: a line of metrics.jsonl, a growing file of a checkpoint, the time of
// run.log, which validation updates.
class StalledRun {
  public:
    StalledRun(std::string folder, double limit_s,
               RunningClock::Source source = RunningClock::seconds_since_boot);

    // True once the folder has not changed for limit_s, counting only time in which this process ran. Call it about every 100
    // ms.
    bool operator()();

  private:
    const std::string folder_;
    const double limit_s_;
    RunningClock clock_;
    Silence silence_;
    RunningClock::Reading looked_{};
    uint64_t state_ = 0;
};

}  // namespace speedrun
