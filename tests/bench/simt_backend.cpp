// Replaces cuda_backend.cpp: the CUDA kernels executed on the host, for tests of their arguments, not for
// times.
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/bench/backend.h"
#include "tests/simt/simt_device.h"

namespace speedrun::bench {

Backend make_cuda_backend(const CudaLibraries& /*libraries*/) {
    Backend backend;
    backend.device = std::make_unique<simt::SimtDevice>(simt::Options{simt::Order::forward});
    backend.ops = make_cuda_ops(*backend.device);
    backend.peaks = {1, 1 << 20};
    backend.description = {{"kind", "simt"}};
    return backend;
}

}  // namespace speedrun::bench
