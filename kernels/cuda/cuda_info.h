// What GPUs there are: for `device: auto`, `doctor` and the record of a run's environment. Needs no GPU to be
// asked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

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

// Never throws; a machine without driver or GPU is an answer, not an error.
CudaInfo query_cuda();

// The device and its operations. Throws a usage error where there is no such GPU; a dry one needs none.
std::unique_ptr<Device> make_cuda_device(int index, bool dry);

}  // namespace speedrun
