// One run of `speedrun train`, for commands with many runs in one process.
#pragma once

#include <functional>

#include "train/comm/communicator.h"
#include "train/commands/commands.h"
#include "train/config/config.h"

namespace speedrun {

// Trains the config that `read` returns into the run folder of the options. Returns the exit code: 0, 1 if a file could not be
// written, 128 + signal if one stopped it. Collective. Throws errors that make the run impossible, and JointError(diverged).
// Signals stop the run, and every later one, after a step.
int train_on(World& world, const TrainOptions& options, const std::function<Config()>& read);

// Throws on all ranks the errors that would refuse a run of this config. Collective.
void check_trainable(World& world, const Config& config);

}  // namespace speedrun
