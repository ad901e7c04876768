// Available GPUs. Declared in every build.
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
    int driver_version = 0;   // CUDA encoding: 13000 is 13.0; 0: no driver
    int runtime_version = 0;  // version that this program was built with
    std::string unavailable;  // reason if no GPU can be used; otherwise empty
};

// Never throws. A machine without driver or GPU, and a build without CUDA, return a result with
// `unavailable`.
CudaInfo query_cuda();

}  // namespace speedrun
