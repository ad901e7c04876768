// Measured operations of `plan --measured`, and the nearest one to a call.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/engine/measured_kernels.h"

void speedrun::fuzz::parse(std::string_view input) {
    const MemoryFile file(input);
    const MeasuredKernels kernels(file.path(), DType::bf16, KernelChoice{});
    const auto* const found = kernels.nearest({.op = "matmul", .flops = 100, .bytes = 100});
    if (found && !(found->share_of_floor > 0 && std::isfinite(found->share_of_floor))) std::abort();
}
