#include <fmt/format.h>

#include "kernels/cuda/cuda_info.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/device/error.h"
#include "tests/bench/backend.h"
#include "tests/bench/cublaslt_probe.h"

namespace speedrun::bench {

Backend make_cuda_backend() {
    const CudaInfo info = query_cuda();
    if (!info.unavailable.empty()) throw_usage("no NVIDIA GPU/driver found: {}", info.unavailable);
    const CudaGpu& gpu = info.gpus.front();
    Backend backend;
    backend.device = make_cuda_device(0, false);
    backend.ops = make_cuda_ops(*backend.device);
    backend.cache_bytes = gpu.l2_bytes;
    backend.head_start_bytes = int64_t{2} << 30;
    backend.copy_bytes = int64_t{2} << 30;
    backend.product_size = 8192;
    backend.probes = {cublaslt_probe(*backend.device)};
    backend.description = {{"kind", "cuda"},
                           {"name", gpu.name},
                           {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                           {"multiprocessors", gpu.multiprocessors},
                           {"memory_bytes", gpu.memory_bytes},
                           {"l2_bytes", gpu.l2_bytes},
                           {"driver_cuda", info.driver_version},
                           {"runtime_cuda", info.runtime_version}};
    return backend;
}

}  // namespace speedrun::bench
