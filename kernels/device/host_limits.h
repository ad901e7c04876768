// Threads and memory that this process can get from the host: cores, control groups, limits of the shell (ulimit). Linux.
#pragma once

#include <optional>
#include <string>

#include "kernels/device/control_group.h"

namespace speedrun {

struct HostThreads {
    int cores = 1;                     // in the affinity mask
    std::optional<CoreLimit> limit;    // control group
    std::optional<AmountLimit> tasks;  // control group and `ulimit -u`
};

// Read by the first call.
const HostThreads& host_threads();

// Threads for the loops of each of `ranks` processes that share the limits, at least 1: the number of cores, or a lower
// limit. Leaves tasks for the other threads of a run.
int threads_within(const HostThreads& host, int ranks = 1);

// The value of OMP_NUM_THREADS, saturated; nothing: unset, or no number above 0.
std::optional<int> omp_num_threads();

// Text with the limit that `threads` reach or exceed; empty: only the number of cores limits them.
std::string threads_note(const HostThreads& host, int threads);

struct HostMemory {
    int64_t available = -1;            // bytes; -1: not known
    std::optional<AmountLimit> limit;  // lower than the memory that the machine has available
};

HostMemory host_memory();

// One line of facts for a message after the host has refused a thread or a process.
std::string describe_task_limits();

}  // namespace speedrun
