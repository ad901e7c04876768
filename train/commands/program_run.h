// One run by a program of its own: how two builds of the engine are raced.
#pragma once

#include <string>

#include "train/commands/commands.h"

namespace speedrun {

// `PROGRAM train` with these options (config, settings, name, out, seed), its results in the run's folder and its errors on
// stderr. Returns its exit code; 128 + signal if one ended it. A signal that stops a run goes to the program, which stops after a
// step. Throws a usage error if it cannot be started. Threads: one such run at a time.
int train_with(const std::string& program, const TrainOptions& options);

}  // namespace speedrun
