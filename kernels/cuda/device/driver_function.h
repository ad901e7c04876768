// Functions of the NVIDIA driver, looked up through the runtime: the program starts on machines without a driver.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/cuda_check.h"

namespace speedrun {

// Throws an internal error if the driver does not have the function.
template <class Function>
Function driver_function(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cuda::check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found),
                "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess || !address)
        throw_internal("the NVIDIA driver does not offer {}; it is too old", name);
    return reinterpret_cast<Function>(address);
}

}  // namespace speedrun
