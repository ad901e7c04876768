// A finished run for eval and sample: its config and its weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/engine/step_runner.h"

namespace speedrun {

struct FinishedRun {
    Config config;
    std::string folder;  // run folder; empty: a config, or a checkpoint outside of a run folder
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<StepRunner> runner;
    std::string data;  // identity of the training and validation shards, JSON; empty: unknown
};

// Opens a run, a checkpoint or final weights (find_weights()), or a config, with the model initialised from its seed. A
// checkpoint named alone has its own config and data; others have RUN/config.json and RUN/data.json. `settings` are applied. The
// microbatch is one of the run's, or a single sequence. Throws a usage or data error that names the missing part, and
// Error(diverged) for weights that are not finite.
FinishedRun open_finished_run(const std::string& run, const std::vector<std::string>& settings,
                              bool single_sequence);

// Completes a batch that has the tokens and targets of whole rows, and copies it to the run's device. Runs forward of the
// validation model.
void forward_batch(const FinishedRun& run, Batch& batch, int32_t separator);

}  // namespace speedrun
