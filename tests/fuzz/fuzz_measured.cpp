// Measured operations of `plan --measured`, and the nearest one to a call.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/engine/measured_kernels.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const speedrun::fuzz::MemoryFile file({reinterpret_cast<const char*>(data), size});
    speedrun::fuzz::expect_clean([&] {
        const speedrun::MeasuredKernels kernels(file.path(), speedrun::DType::bf16, speedrun::KernelChoice{});
        const auto* const found = kernels.nearest({.op = "matmul", .flops = 100, .bytes = 100});
        if (found && !(found->share_of_floor > 0 && std::isfinite(found->share_of_floor))) std::abort();
    });
    return 0;
}
