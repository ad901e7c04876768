// The devices that op_bench can time, and what bounds them.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/ops/ceilings.h"
#include "kernels/ops/ops.h"

namespace speedrun::bench {

// A matrix product c = a bᵀ (all real, [M,N], [M,K], [N,K]) from elsewhere, to find the ceiling with.
struct ProductProbe {
    std::string name;
    LargeProduct::Product run;
};

struct Backend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;      // after the device: goes first
    int64_t cache_bytes = 0;       // last level: what repeated runs over one set of inputs would hit
    int64_t head_start_bytes = 0;  // that the device fills in about a millisecond; 0: it needs no head start
    CeilingSizes ceilings;
    bool library_matmul = false;       // the operation matmul is a vendor's library
    std::string missing;               // a library that was asked for and is not there, and why; empty: none
    std::vector<ProductProbe> probes;  // besides the operation matmul
    nlohmann::ordered_json description;  // of device and library versions
};

Backend make_cpu_backend(int num_threads);
// Throws a usage error where the build has no CUDA or the machine no GPU, saying which.
Backend make_cuda_backend(const CudaLibraries& libraries);

}  // namespace speedrun::bench
