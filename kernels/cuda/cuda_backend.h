// CUDA backend for the layers above: a device with its operations. Declared in every build, so that callers
// need no #if; a build without CUDA throws (no_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device/cuda_info.h"
#include "kernels/ops/ops.h"

namespace speedrun {

// library: cuBLASLt if available. native: our portable kernels. wgmma: library, but ours for compute capability 9.0 for
// matmuls with an epilogue where they win (wgmma_matmul_wins).
enum class MatmulKind : uint8_t { library, native, wgmma };
// hand: our portable kernels. wgmma: ours for compute capability 9.0, and cudnn: cuDNN, if available and
// applicable.
enum class AttentionKind : uint8_t { native, wgmma, cudnn };

struct CudaLibraries {
    MatmulKind products = MatmulKind::library;
    AttentionKind attention = AttentionKind::native;
};

struct CudaOptions {
    int gpu = 0;       // index from 0
    bool dry = false;  // no GPU needed
    CudaLibraries libraries = {};
    bool dependent_launch =
        false;  // kernels may begin while earlier kernels of their stream end, if the GPU supports it
};

struct CudaBackend {
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;        // declared after the device: destroyed first
    std::vector<std::string> notes;  // notes for the user, one sentence each
};

// Throws a usage error if the GPU does not exist, or if cuDNN is requested from a build without it.
CudaBackend make_cuda_backend(const CudaOptions& options);

}  // namespace speedrun
