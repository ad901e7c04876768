// Programs that this one starts and waits for: two builds of the engine that are raced, a run that is launched again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/commands/commands.h"

namespace speedrun {

// Runs a program (looked for on PATH, where its name has no '/') with these words and returns its exit code; 128 + signal if one
// ended it. Passes kStopSignals on to it, as SIGUSR1 to mpirun and the like. Throws a usage error if it cannot be started.
// Threads: one at a time. Kills the program and its group once is_stuck, if given, returns true; it is called every 100 ms.
int run_program(const std::vector<std::string>& words, bool quiet,
                const std::function<bool()>& is_stuck = {});
// Returns the first of these signals since the first program ran; 0: none.
int signal_passed_on();

// `PROGRAM train` with these options (config, settings, name, out, seed), its results in the run's folder and its errors on
// stderr. Otherwise as run_program.
int train_with(const std::string& program, const TrainOptions& options);

}  // namespace speedrun
