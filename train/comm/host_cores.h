// CPU cores of a host and their division between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/comm/communicator.h"

namespace speedrun {

std::string host_name();  // host of this process
// CPU cores available to a process, and their host.
struct CoreSet {
    std::string host;
    std::vector<int> cores;  // ascending
    double limit = 0;        // CPU limit of the control group, in cores; 0: none
    int64_t tasks = -1;      // processes and threads allowed by the limits; -1: no limit
};
CoreSet available_cores();

// Returns the number of threads for process `own`, at least 1. A core shared by n processes counts 1/n for each, so the result
// is right with and without core binding by the launcher. Processes of one host share its limits.
int share_of_cores(const std::vector<CoreSet>& processes, size_t own);

// Returns the number of threads for this rank, at most OMP_NUM_THREADS; ranks on one host share its cores. Collective over the
// world. Returns 0, the library's default, for a single rank.
int threads_of_rank(World& world);

}  // namespace speedrun
