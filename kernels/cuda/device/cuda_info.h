// What GPUs there are. Declared in every build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

struct CudaGpu {
    std::string name;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    int64_t memory_bytes = 0, l2_bytes = 0;
};

struct CudaInfo {
    std::vector<CudaGpu> gpus;
    int driver_version = 0;   // as CUDA counts: 13000 is 13.0; 0: no driver
    int runtime_version = 0;  // the one that this program was built with
    std::string unavailable;  // why no GPU can be used; empty if one can
};

// Never throws; a machine without driver or GPU, and a build without CUDA, is an answer, not an error.
CudaInfo query_cuda();

}  // namespace speedrun
