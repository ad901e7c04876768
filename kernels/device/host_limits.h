// Threads and memory that this process can get from the host: cores, control groups, limits of the shell (ulimit). Linux.
#pragma once

#include <optional>
#include <string>

#include "kernels/device/control_group.h"

namespace speedrun {

struct HostThreads {
    int cores = 1;                     // that the process may run on (affinity)
    std::optional<CoreLimit> limit;    // of its control group
    std::optional<AmountLimit> tasks;  // of its control group and `ulimit -u`
};

// Read by the first call.
const HostThreads& host_threads();

// Threads for the loops of each of `ranks` processes that share the limits, at least 1: as many as there are cores,
// fewer where a limit is lower. Leaves tasks for the threads that a run has besides.
int threads_within(const HostThreads& host, int ranks = 1);

// The value of OMP_NUM_THREADS, saturated; nothing: unset, or no number above 0.
std::optional<int> omp_num_threads();

// Which limit holds so many threads below the number of cores, or is exceeded by them; empty: none.
std::string threads_note(const HostThreads& host, int threads);

struct HostMemory {
    int64_t available = -1;            // bytes; -1: not known
    std::optional<AmountLimit> limit;  // that leaves less than the machine has available
};

HostMemory host_memory();

// One line of facts for a message after the host has refused a thread or a process.
std::string describe_task_limits();

}  // namespace speedrun
