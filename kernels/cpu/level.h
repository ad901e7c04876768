// Interface of the objects of one instruction level. Each level is linked into one relocatable file in which
// every other name is local (kernels/CMakeLists.txt). So code that must run without AVX-512 never uses an
// inline function compiled for it.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"

namespace speedrun {

struct CpuLevel {
    Ops* (*make_ops)(CpuDevice& device, Isa isa);
    // For tests of matmuls at sizes and with options that no operation uses.
    int64_t (*product_workspace)(const cpu::Gemm& product);
    void (*run_product)(const cpu::Gemm& product, void* workspace);
};

// The last one serves avx512_bf16 and amx_bf16.
extern "C" const CpuLevel speedrun_cpu_avx2, speedrun_cpu_avx512, speedrun_cpu_avx512_bf16;

// Interface of a usable level. Throws an internal error if the build lacks it.
const CpuLevel& cpu_level(Isa isa);

}  // namespace speedrun
