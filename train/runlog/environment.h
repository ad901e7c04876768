// What a run ran on: build, host, processor, memory. Facts for environment.json and `speedrun doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"

namespace speedrun {

// Where a rank runs; the host and device of another rank travel as text.
struct RankPlace {
    std::string host, device;
    std::string to_text() const { return host + '\n' + device; }
    static RankPlace from_text(const std::string& text);
};

struct Environment {
    std::string version, git_sha, compiler, build_type,
        build_flags;  // of the build; git_sha ends in "-dirty" if it was
    bool has_mpi = false, has_cuda = false;
    std::string host, os, cpu;
    int cores = 0;
    double cpu_mhz = 0;             // of the first core, now
    std::string isa;                // level of the CPU's operations that runs use; "" where there is none
    std::vector<std::string> isas;  // that this processor and build can use
    int64_t memory_bytes = 0, available_memory_bytes = 0;
    CudaInfo cuda;
    std::string clock_source;
    std::string time_utc;
    std::vector<RankPlace> ranks;  // by rank; read_environment() leaves it empty
};

Environment read_environment();
std::string environment_to_json(const Environment& environment);
int64_t peak_rss_bytes();
// From now on peak_rss_bytes() is of what follows: for a process that makes several runs. Where the kernel
// refuses, it stays that of the whole process.
void reset_peak_rss();
int64_t current_rss_bytes();

}  // namespace speedrun
