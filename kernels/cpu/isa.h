// The instruction levels that the CPU's operations are compiled for, each from the same source. The highest
// one that the processor has is chosen when the program starts to use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace speedrun {

class CpuDevice;
class Ops;

// In rising order: a processor that has one has all before it.
enum class Isa : uint8_t {
    avx2,         // and FMA: Intel since 2013 (Haswell), AMD since 2015 (Excavator)
    avx512,       // F, BW, CD, DQ and VL: x86-64-v4
    avx512_bf16,  // dot products of bf16 pairs: Cooper Lake, Sapphire Rapids, Zen 4
    amx_bf16,     // and products of whole tiles of bf16: Xeons since Sapphire Rapids
};

constexpr const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx2:
            return "avx2";
        case Isa::avx512:
            return "avx512";
        case Isa::avx512_bf16:
            return "avx512_bf16";
        case Isa::amx_bf16:
            return "amx_bf16";
    }
    return "?";
}

// The levels that this processor has and this build was compiled for, in rising order; none on a processor
// without AVX2.
std::vector<Isa> usable_isas();

// The level that runs use: the highest usable one, or the one that the environment's SPEEDRUN_ISA names. A
// usage error where that is unknown or not usable, or where the processor has no AVX2.
Isa cpu_isa();

// Does that level multiply bf16 in hardware? Without, bf16 products are f32 products of the same values:
// slower than f32.
bool cpu_has_bf16();

// The operations at one usable level. make_cpu_ops() of ops.h is this one at cpu_isa().
std::unique_ptr<Ops> make_cpu_ops(CpuDevice& device, Isa isa);

}  // namespace speedrun
