// The parent process of a rank under a launcher. mpirun ends a job with the status of the first process that dies, and kills
// the others before they can print the reason. A rank killed by the kernel for its memory would end the run with 137 and no
// message. Under a launcher the rank is therefore a child, and its parent reports that death: exit code 5, naming rank and
// signal.
#pragma once

#include <functional>

namespace speedrun {

// Runs `rank` in a child process under a launcher, else in this process, and returns its exit code; 5 if a signal killed it.
// Call it first in main, before threads are started. Stop signals reach both processes, as launchers send them to the group;
// the parent ignores them. If the parent is killed, the child is killed too.
int run_supervised(const std::function<int()>& rank);

}  // namespace speedrun
