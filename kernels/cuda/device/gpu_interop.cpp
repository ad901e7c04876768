#include "kernels/cuda/device/gpu_interop.h"

#include <utility>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_device.h"

namespace speedrun {

namespace {

CudaStream& cuda_stream(Stream& stream) {
    auto* const cuda = dynamic_cast<CudaStream*>(&stream);
    if (!cuda) throw_internal("stream {} is not one of a GPU", stream.name());
    return *cuda;
}

}  // namespace

bool submit_to_gpu_stream(Stream& stream, const char* label, std::function<void()> work) {
    auto* const cuda = dynamic_cast<CudaStream*>(&stream);
    if (!cuda) return false;
    cuda->submit(label, std::move(work));
    return true;
}

void* native_gpu_stream(Stream& stream) {
    return cuda_stream(stream).handle();
}

bool is_captured(const Stream& stream) {
    const auto* const cuda = dynamic_cast<const CudaStream*>(&stream);
    return cuda && cuda->capturing();
}

std::string gpu_identity(const Device& device) {
    const auto* const cuda = dynamic_cast<const CudaDevice*>(&device);
    if (!cuda || cuda->dry()) return "";
    return gpu_identity(cuda->index());
}

std::string gpu_identity(int gpu) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
    return fmt::format("{:08x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID,
                       properties.pciDeviceID);
}

void use_gpu(const Device& device) {
    if (const auto* const cuda = dynamic_cast<const CudaDevice*>(&device))
        cuda::check(cudaSetDevice(cuda->index()), "cudaSetDevice");
}

void begin_gpu_span(Stream& stream, const char* label) {
    cuda_stream(stream).begin_span(label);
}

void end_gpu_span(Stream& stream) {
    cuda_stream(stream).end_span();
}

}  // namespace speedrun
