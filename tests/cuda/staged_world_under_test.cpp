// Makes mpi_conformance a test of the staged world on a GPU (the fake runtime's GPU, if that is linked).
// build: in mpi_staged_conformance
#include "kernels/cuda/device/cuda_device.h"
#include "tests/distributed/conformance.h"
#include "train/comm/staged_world.h"

namespace speedrun::testing {
namespace {

const bool kInstalled = [] {
    conformance_device() = [] { return std::make_unique<CudaDevice>(); };
    run_conformance() = [](const ConformanceCase& one, World& world) {
        CudaDevice device;
        one.run(*make_staged_world(world, device));
    };
    return true;
}();

}  // namespace
}  // namespace speedrun::testing
