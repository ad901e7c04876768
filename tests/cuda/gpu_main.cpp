// main() of the tests that need a GPU: without one they are skipped with a message.
// build: in gpu_tests
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cuda/cuda_backend.h"
#include "tests/runs/run_fixture.h"

namespace {
constexpr int kSkipped = 77;  // exit code that ctest treats as skipped
}

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
    speedrun::testing::run_device() = "cuda";
    // Loads all kernels at the start. Ranks that are threads share the process's GPU, and loading a kernel at
    // its first launch may wait for all streams. One of these may wait for a rank that waits for the loading.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    const speedrun::CudaInfo info = speedrun::query_cuda();
    if (!info.unavailable.empty()) {
        fmt::print("skipped: these tests need an NVIDIA GPU: {}\n", info.unavailable);
        return kSkipped;
    }
    const speedrun::CudaGpu& gpu = info.gpus.front();
    fmt::print("GPU: {} (compute capability {}.{}, {} multiprocessors, {:.1f} GiB), driver for CUDA {}.{}\n",
               gpu.name, gpu.major, gpu.minor, gpu.multiprocessors,
               static_cast<double>(gpu.memory_bytes) / (1 << 30), info.driver_version / 1000,
               info.driver_version % 1000 / 10);
    return RUN_ALL_TESTS();
}
