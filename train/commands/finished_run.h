// A run as eval and sample need it: its config and its weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/engine/step_runner.h"

namespace speedrun {

struct FinishedRun {
    Config config;
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<StepRunner> runner;
    std::string data;  // identity of the shards that it was trained and validated on, JSON; empty: unknown
};

// Opens RUN/config.json (with settings on top) and loads RUN/checkpoints/final; or a checkpoint, which has
// both; or a config, whose model is as its seed initialises it. The microbatch is one as of the run, or a single sequence. Throws a usage or data error that says
// what is missing, and Error(diverged) for weights that are not finite.
FinishedRun open_finished_run(const std::string& run, const std::vector<std::string>& settings,
                              bool single_sequence);

// Completes a batch that has the tokens and targets of whole rows, and copies it to the run's device. Runs forward of the
// validation model.
void forward_batch(const FinishedRun& run, Batch& batch, int32_t separator);

}  // namespace speedrun
