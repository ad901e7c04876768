// Instruction levels for which the CPU operations are compiled, each from the same source. The program
// selects the highest level of the processor at first use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace speedrun {

class CpuDevice;
class Ops;

// In rising order: each level includes the ones before it.
enum class Isa : uint8_t {
    avx2,         // and FMA: Intel since 2013 (Haswell), AMD since 2015 (Excavator)
    avx512,       // F, BW, CD, DQ and VL: x86-64-v4
    avx512_bf16,  // dot products of bf16 pairs: Cooper Lake, Sapphire Rapids, Zen 4
    amx_bf16,     // and AMX tiles of bf16: Xeons since Sapphire Rapids
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

// Levels that both this processor and this build support, in rising order; empty on a processor without AVX2.
std::vector<Isa> usable_isas();

// Level of this run: the highest usable one, or the one named by SPEEDRUN_ISA. Throws a usage error if that
// one is unknown or not usable, or if the processor has no AVX2.
Isa cpu_isa();

// True if the level multiplies bf16 in hardware. Without, bf16 matmuls are f32 matmuls of the same values,
// slower than f32.
bool cpu_has_bf16();

// Operations at one usable level. make_cpu_ops() of ops.h uses cpu_isa().
std::unique_ptr<Ops> make_cpu_ops(CpuDevice& device, Isa isa);

}  // namespace speedrun
