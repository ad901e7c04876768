// The CUDA backend as the layers above see it: a device with its operations.
// Declared in every build, so that they need no #if; a build without CUDA says that it has none
// (no_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device/cuda_info.h"
#include "kernels/ops/ops.h"

namespace speedrun {

enum class Products : uint8_t { library, hand };  // cuBLASLt where it can be had, or our kernels
// Our kernels; those of them for compute capability 9.0, or cuDNN, where they can be had and serve.
enum class AttentionKind : uint8_t { hand, wgmma, cudnn };

struct CudaLibraries {
    Products products = Products::library;
    AttentionKind attention = AttentionKind::hand;
};

struct CudaOptions {
    int gpu = 0;       // counted from 0
    bool dry = false;  // needs no GPU
    CudaLibraries libraries = {};
    bool dependent_launch =
        false;  // kernels may begin while those before them end, where the GPU can do that
};

struct CudaBackend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;        // after the device: goes first
    std::vector<std::string> notes;  // what a user should know, one sentence each
};

// Throws a usage error where there is no such GPU, and where cuDNN is asked of a build without it.
CudaBackend make_cuda_backend(const CudaOptions& options);

}  // namespace speedrun
