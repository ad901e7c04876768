// Programs that this one starts and waits for: two builds of the engine that are raced, a run that is launched again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/commands/commands.h"

namespace speedrun {

// Runs a program (looked for on PATH, where its name has no '/') with these words and returns its exit code; 128 + signal if one
// ended it. SIGINT, SIGTERM, SIGHUP and SIGUSR1 go on to it. Throws a usage error if it cannot be started. Threads: one at a time.
// is_stuck, if given, is asked now and then; once it says so, the program and its group are killed.
int run_program(const std::vector<std::string>& words, bool quiet,
                const std::function<bool()>& is_stuck = {});
// The last of these signals that came, since the first program ran; 0: none.
int signal_passed_on();

// `PROGRAM train` with these options (config, settings, name, out, seed), its results in the run's folder and its errors on
// stderr. Otherwise as run_program.
int train_with(const std::string& program, const TrainOptions& options);

}  // namespace speedrun
