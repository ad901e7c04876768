// The CPU cores of a host, and what each of several ranks may use of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/comm/communicator.h"

namespace speedrun {

std::string host_name();  // of the machine that this process runs on
// The CPU cores that a process may run on, and the host they belong to.
struct CoreSet {
    std::string host;
    std::vector<int> cores;  // ascending
    double limit = 0;        // CPU limit of the control group, in cores; 0: none
    int64_t tasks = -1;      // processes and threads that the limits leave; -1: no limit
};
CoreSet available_cores();

// Threads for process `own` of these, at least 1: a core that several may use counts for each by its share,
// so that the number is right whether the launcher ties ranks to cores or not. Processes of one host share its limits.
int share_of_cores(const std::vector<CoreSet>& processes, size_t own);

// Threads for this rank, as ranks of one host share it; at most OMP_NUM_THREADS; collective over the world. 0, "decide
// yourself", for a rank alone.
int threads_of_rank(World& world);

}  // namespace speedrun
