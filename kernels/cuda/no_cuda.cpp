// The CUDA backend of a build without CUDA.
#include "kernels/cuda/cuda_backend.h"

namespace speedrun {

CudaInfo query_cuda() {
    CudaInfo info;
    info.unavailable = "this build has no CUDA backend";
    return info;
}

CudaBackend make_cuda_backend(const CudaOptions& /*options*/) {
    throw_usage(
        "device: 'cuda' was asked for, but this build has no CUDA backend; build it where nvcc is on PATH, "
        "or use "
        "'cpu' or 'auto'");
}

}  // namespace speedrun
