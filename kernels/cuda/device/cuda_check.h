// Checks the return code of every CUDA runtime call.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/error.h"

namespace speedrun::cuda {

// Throws an internal error that names the call and the cause unless `error` is success.
inline void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    throw_internal("{}: {}: {}", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace speedrun::cuda
