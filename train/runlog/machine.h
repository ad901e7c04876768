// Readable settings of this machine, for `speedrun doctor`. Linux.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/device/host_limits.h"

namespace speedrun {

struct Machine {
    HostThreads threads;
    HostMemory memory;
    std::string governor;              // frequency governor of the first core; empty: not readable
    std::optional<int64_t> throttled;  // thermal throttling events of the cores since boot
    std::string huge_pages;            // "always", "madvise", "never"; empty: unknown
    std::string clock_source, other_clock_sources;
    std::string nccl;  // version of the library that the loader finds, or the reason why none is found
    bool has_nccl = false;
    std::string launcher;  // path of mpirun or mpiexec; empty: none on PATH
};

Machine read_machine();

struct FolderSpace {
    std::string existing;  // the folder itself, or the nearest one above it that exists
    bool writable = false;
    int64_t free_bytes = 0;
};
FolderSpace space_for(const std::string& folder);

}  // namespace speedrun
