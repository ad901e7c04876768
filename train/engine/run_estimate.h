// How long a config's whole training would take on this machine: what `speedrun bench --run` prints.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

struct EstimatedStage {
    int64_t first_step = 0, end_step = 0;  // [first, end) of the schedule
    double step_ms = 0;                    // mean over the middle half of the steps
};

struct RunEstimate {
    std::string device;
    std::vector<EstimatedStage> stages;

    double train_ms()
        const;  // of all steps; validation and start-up are not in it, as not in a run's training time
};

// Trains on made-up tokens in each shape that the stages of the schedule have, for about so many seconds in all, but at least
// one whole period of the optimizers each, led in by a step that does not count. One rank. Throws as a run does.
RunEstimate estimate_run(const Config& config, double seconds);

}  // namespace speedrun
