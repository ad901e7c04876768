// What one instruction level's objects show to the rest of the program. They are linked into one relocatable
// file each, in which every other name is local (kernels/CMakeLists.txt): so no inline function that was
// compiled for AVX-512 is ever taken by code that must run without it.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/product.h"

namespace speedrun {

struct CpuLevel {
    Ops* (*make_ops)(CpuDevice& device, Isa isa);
    // For tests of products at sizes and with options that no operation passes on.
    int64_t (*product_workspace)(const cpu::Product& product);
    void (*run_product)(const cpu::Product& product, void* workspace);
};

// The last one serves avx512_bf16 and amx_bf16.
extern "C" const CpuLevel speedrun_cpu_avx2, speedrun_cpu_avx512, speedrun_cpu_avx512_bf16;

// What a usable level shows; an internal error where the build lacks it.
const CpuLevel& cpu_level(Isa isa);

}  // namespace speedrun
