// Environment of a run: build, host, processor, memory, for environment.json and `speedrun doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace speedrun {

// Location of a rank; other ranks' host and device are received as text.
struct RankLocation {
    std::string host, device;
    std::string to_text() const { return host + '\n' + device; }
    static RankLocation from_text(const std::string& text);
};

struct Environment {
    std::string version, git_sha, compiler, build_type,
        build_flags;  // properties of the build; git_sha ends in "-dirty" after local changes
    bool has_mpi = false, has_cuda = false;
    std::string host, os, cpu;
    int cores = 0;
    double cpu_mhz = 0;             // first core, current
    std::string isa;                // instruction set level used by runs; "" if none
    std::vector<std::string> isas;  // levels that this processor and build support
    int64_t memory_bytes = 0, available_memory_bytes = 0;
    CudaInfo cuda;
    std::string clock_source;
    std::string time_utc;
    std::vector<RankLocation> ranks;  // index: rank; read_environment() leaves it empty
};

Environment read_environment();
std::string environment_to_json(const Environment& environment);
int64_t peak_rss_bytes();
// Restarts peak_rss_bytes() from the current value, for a process with several runs. If the kernel refuses, the peak remains
// the whole process's.
void reset_peak_rss();
int64_t current_rss_bytes();

}  // namespace speedrun
