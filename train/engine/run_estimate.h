// Estimated training time of a config on this machine, printed by `speedrun bench --run`.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

struct EstimatedStage {
    int64_t first_step = 0, end_step = 0;  // schedule steps [first, end)
    double step_ms = 0;                    // mean over the middle half of the steps
};

struct RunEstimate {
    std::string device;
    std::vector<EstimatedStage> stages;

    double train_ms() const;  // all steps; as in a run's training time, without validation and start-up
};

// Trains on synthetic tokens in each shape of the schedule's stages. Takes about `seconds` in all, but at least one
// optimizer period per shape, after an untimed step. One rank. Throws as a run does.
RunEstimate estimate_run(const Config& config, double seconds);

}  // namespace speedrun
