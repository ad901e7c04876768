// Runs child programs: two builds of the engine in a race, a run that is launched again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/commands/commands.h"

namespace speedrun {

// Runs a program with these words and returns its exit code; 128 + signal if a signal ended it. A name without '/' is searched
// on PATH. Forwards kStopSignals to the program, as SIGUSR1 to mpirun and similar launchers. Throws a usage error if it cannot
// be started. Only one program at a time. Kills the program and its group once is_stuck, if set, returns true; it is called
// every 100 ms.
int run_program(const std::vector<std::string>& words, bool quiet,
                const std::function<bool()>& is_stuck = {});
// Returns the first stop signal since the first program was run; 0: none.
int signal_passed_on();

// Runs `PROGRAM train` with these options (config, settings, name, out, seed); results are in the run's folder, errors on
// stderr. Otherwise as run_program.
int train_with(const std::string& program, const TrainOptions& options);

}  // namespace speedrun
