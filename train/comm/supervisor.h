// The process that a launcher sees in place of a rank. mpirun ends a job with the status of the first process
// that dies, and kills the others before they can say why: a rank that the kernel killed for its memory would
// end the run with 137 and no word of ours. So under a launcher the rank is a child, and its parent reports
// that death: exit code 5, naming rank and signal.
#pragma once

#include <functional>

namespace speedrun {

// Runs `rank` in a child process if a launcher started us, here if not, and returns its exit code; 5 if a
// signal killed it. Call it first thing in main, before there are threads. Signals that stop a run go to both
// processes, as launchers send them to the whole group; the parent leaves them to the child. Should the
// parent be killed, so is the child.
int run_supervised(const std::function<int()>& rank);

}  // namespace speedrun
