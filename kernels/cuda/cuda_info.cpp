#include "kernels/cuda/cuda_info.h"

#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_device.h"

namespace speedrun {

CudaInfo query_cuda() {
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

std::unique_ptr<Device> make_cuda_device(int index, bool dry) {
    return std::make_unique<CudaDevice>(index, dry);
}

}  // namespace speedrun
