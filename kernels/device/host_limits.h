// Threads and memory that the host grants to this process: cores, control groups, shell limits (ulimit).
// Linux.
#pragma once

#include <optional>
#include <string>

#include "kernels/device/control_group.h"

namespace speedrun {

struct HostThreads {
    int cores = 1;                     // cores in the affinity mask
    std::optional<CoreLimit> limit;    // control group
    std::optional<AmountLimit> tasks;  // control group and `ulimit -u`
};

// Read on the first call.
const HostThreads& host_threads();

// Threads for the loops of each of `ranks` processes that share the limits, at least 1: the number of cores,
// or a lower limit. Reserves tasks for the other threads of a run.
int threads_within(const HostThreads& host, int ranks = 1);

// Value of OMP_NUM_THREADS, saturated; nullopt: unset, or not a number above 0.
std::optional<int> omp_num_threads();

// Note on the limit that `threads` reach or exceed; empty: only the number of cores limits them.
std::string threads_note(const HostThreads& host, int threads);

struct HostMemory {
    int64_t available = -1;            // bytes; -1: unknown
    std::optional<AmountLimit> limit;  // set only if it is below the memory that the machine has available
};

HostMemory host_memory();

// One line of limits, for a message after the host has refused a thread or a process.
std::string describe_task_limits();

}  // namespace speedrun
