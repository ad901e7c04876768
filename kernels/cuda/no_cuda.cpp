// The CUDA backend of a build without CUDA.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/gpu_interop.h"
#include "kernels/cuda/vendor/attention_library.h"

namespace speedrun {

CudaInfo query_cuda() {
    CudaInfo info;
    info.unavailable = "this build has no CUDA backend";
    return info;
}

CudaBackend make_cuda_backend(const CudaOptions& /*options*/) {
    throw_usage(
        "device: 'cuda' was asked for, but this build has no CUDA backend; build it where nvcc is on PATH, "
        "or use 'cpu' or 'auto'");
}

bool built_with_cudnn() {
    return false;
}

bool submit_to_gpu_stream(Stream& /*stream*/, const char* /*label*/, std::function<void()> /*work*/) {
    return false;
}

void* native_gpu_stream(Stream& stream) {
    throw_internal("stream {} is not one of a GPU", stream.name());
}

bool is_captured(const Stream& /*stream*/) {
    return false;
}

std::string gpu_identity(const Device& /*device*/) {
    return "";
}

std::string gpu_identity(int /*gpu*/) {
    return "";
}

void use_gpu(const Device& /*device*/) {}

void begin_gpu_span(Stream& stream, const char* /*label*/) {
    native_gpu_stream(stream);
}

void end_gpu_span(Stream& stream) {
    native_gpu_stream(stream);
}

}  // namespace speedrun
