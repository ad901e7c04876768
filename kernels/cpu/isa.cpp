#include "kernels/cpu/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <string_view>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/level.h"
#include "kernels/ops/ops.h"

namespace speedrun {

namespace {

constexpr Isa kIsas[] = {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx_bf16};

// Level compiled into this build; null for other levels.
const CpuLevel* built(Isa isa) {
    switch (isa) {
#ifdef SPEEDRUN_HAS_avx2
        case Isa::avx2:
            return &speedrun_cpu_avx2;
#endif
#ifdef SPEEDRUN_HAS_avx512
        case Isa::avx512:
            return &speedrun_cpu_avx512;
#endif
#ifdef SPEEDRUN_HAS_avx512_bf16
        case Isa::avx512_bf16:
        case Isa::amx_bf16:  // differences are selected at run time
            return &speedrun_cpu_avx512_bf16;
#endif
        default:
            return nullptr;
    }
}

#ifdef __x86_64__
// True if the processor has AMX and Linux permits this process to use it. Linux must be asked, because AMX
// state adds 8 KiB to each thread that uses it (Documentation/arch/x86/xstate.rst).
bool may_use_amx() {
    constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;  // bits of edx, leaf 7
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kBf16) || !(edx & kTiles)) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool processor_has(Isa isa) {
#ifdef __x86_64__
    switch (isa) {
        case Isa::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case Isa::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
        case Isa::avx512_bf16:
            return __builtin_cpu_supports("avx512bf16");
        case Isa::amx_bf16:
            return may_use_amx();
    }
#endif
    return false;
}

Isa choose() {
    const std::vector<Isa> usable = usable_isas();
    if (usable.empty()) throw_usage("this processor has no AVX2 with FMA, which speedrun needs on a CPU");
    const char* const requested = std::getenv("SPEEDRUN_ISA");
    if (!requested || !*requested) return usable.back();
    std::string names;
    for (const Isa isa : usable) {
        if (std::string_view(requested) == name_of(isa)) return isa;
        names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
    }
    throw_usage("SPEEDRUN_ISA={}: this processor and build can use {}", requested, names);
}

}  // namespace

std::vector<Isa> usable_isas() {
    std::vector<Isa> usable;
    for (const Isa isa : kIsas) {
        if (!processor_has(isa)) break;
        if (built(isa)) usable.push_back(isa);
    }
    return usable;
}

Isa cpu_isa() {
    static const Isa chosen = choose();
    return chosen;
}

bool cpu_has_bf16() {
    return cpu_isa() >= Isa::avx512_bf16;
}

const CpuLevel& cpu_level(Isa isa) {
    const CpuLevel* const level = built(isa);
    if (!level) throw_internal("this build has no CPU operations at level {}", name_of(isa));
    return *level;
}

std::unique_ptr<Ops> make_cpu_ops(CpuDevice& device, Isa isa) {
    return std::unique_ptr<Ops>(cpu_level(isa).make_ops(device, isa));
}

std::unique_ptr<Ops> make_cpu_ops(Device& device) {
    auto* cpu_device = dynamic_cast<CpuDevice*>(&device);
    if (!cpu_device) throw_internal("CPU operations need a CPU device");
    return make_cpu_ops(*cpu_device, cpu_isa());
}

}  // namespace speedrun
