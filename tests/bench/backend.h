// Devices that op_bench can time, and their peaks.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/peaks.h"

namespace speedrun::bench {

// A matmul c = a bᵀ (all real, [M,N], [M,K], [N,K]) of a library, tried when the peak is measured.
struct MatmulProbe {
    std::string name;
    LargeMatmul::Product run;
};

struct Backend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;      // declared after the device: destroyed first
    int64_t cache_bytes = 0;       // last-level cache; repeated runs over one set of inputs would hit it
    int64_t head_start_bytes = 0;  // memory that the device fills in about a millisecond; 0: no head start
                                   // needed
    PeakSizes peaks;
    bool library_matmul = false;         // matmul runs a vendor's library
    std::string missing;                 // reason for which a requested library is missing; empty: none
    std::vector<MatmulProbe> probes;     // tried in addition to matmul
    nlohmann::ordered_json description;  // device and library versions
};

Backend make_cpu_backend(int num_threads);
// Throws a usage error if the build has no CUDA or the machine no GPU; the message states which.
Backend make_cuda_backend(const CudaLibraries& libraries);

}  // namespace speedrun::bench
