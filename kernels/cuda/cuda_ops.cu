#include "kernels/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/cuda/launch.h"

#if !SPEEDRUN_SIMT
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/cuda_device.h"
#endif

namespace speedrun {

CudaOps::CudaOps(Device& device, std::unique_ptr<MatmulLibrary> library)
    : device_(device), library_(std::move(library)) {}

CudaOps::~CudaOps() = default;

void* CudaOps::workspace(Stream& stream, int64_t bytes) {
    Buffer& buffer = workspaces_[&stream];
    if (buffer.bytes() < bytes) {
        stream.synchronize();
        buffer = Buffer();
        buffer =
            Buffer(device_, fmt::format("operations on {}", stream.name()), MemoryCategory::workspace, bytes);
    }
#if SPEEDRUN_SIMT
    simt::poison(stream, buffer.data(), buffer.bytes());
#endif
    return buffer.data();
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, std::unique_ptr<MatmulLibrary> library) {
    return std::make_unique<CudaOps>(device, std::move(library));
}

#if !SPEEDRUN_SIMT

LaunchTarget begin_launch(const LaunchSite& site) {
    auto& stream = static_cast<CudaStream&>(site.stream);
    if (stream.dry()) return {nullptr, true};
    nvtxRangePushA(site.function);  // for profilers; next to nothing where none is attached
    stream.begin_span(site.function);
    return {stream.handle(), false};
}

void end_launch(const LaunchSite& site) {
    static_cast<CudaStream&>(site.stream).end_span();
    nvtxRangePop();
}

void check_launch(cudaError_t error, const void* kernel, const LaunchSite& site) {
    if (error == cudaSuccess) return;
    if (error == cudaErrorNoKernelImageForDevice) {
        throw_usage(
            "this build holds no code for this GPU; configure it with -DSPEEDRUN_CUDA_ARCHITECTURES=native, or with the "
            "preset cuda for every supported GPU");
    }
    const char* name = nullptr;
    if (cudaFuncGetName(&name, kernel) != cudaSuccess || !name) name = "a kernel";
    throw_internal("{}, launched at {}:{} ({}): {}: {}", name, site.file, site.line, site.function,
                   cudaGetErrorName(error), cudaGetErrorString(error));
}

#endif

}  // namespace speedrun
