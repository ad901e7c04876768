#include "kernels/cuda/device/cuda_info.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

namespace speedrun {

CudaInfo query_cuda() {
    // Streams share by default 8 hardware queues for kernels and 8 for copies. A waiting stream blocks its
    // whole queue. With ranks as threads of one process, that queue may hold the very write or copy that it
    // waits for. On an H100 four ranks hung in a collective in which one had not begun its copies, until 32
    // queues were requested for copies too.
    static const bool requested = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0 &&
                                  setenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32", 0) == 0;
    static_cast<void>(requested);
    CudaInfo info;
    const auto failed = [&](cudaError_t error, const char* call) {
        if (error == cudaSuccess) return false;
        cudaGetLastError();
        info.unavailable = fmt::format("{}: {}", call, cudaGetErrorString(error));
        return true;
    };
    info.runtime_version = CUDART_VERSION;
    if (failed(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion")) return info;
    if (info.driver_version == 0) {
        info.unavailable = "no NVIDIA driver is installed";
        return info;
    }
    int count = 0;
    if (failed(cudaGetDeviceCount(&count), "cudaGetDeviceCount")) return info;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp properties{};
        if (failed(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties")) return info;
        info.gpus.push_back({properties.name, properties.major, properties.minor,
                             properties.multiProcessorCount, static_cast<int64_t>(properties.totalGlobalMem),
                             properties.l2CacheSize});
    }
    if (info.gpus.empty()) info.unavailable = "the NVIDIA driver sees no GPU";
    return info;
}

}  // namespace speedrun
