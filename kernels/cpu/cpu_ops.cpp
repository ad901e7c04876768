#include "kernels/cpu/cpu_ops.h"

#include <fmt/format.h>

#include "kernels/cpu/level.h"

namespace speedrun {

CpuOps::CpuOps(CpuDevice& device, Isa isa) : device_(device), isa_(isa) {}
CpuOps::~CpuOps() = default;

void* CpuOps::workspace(Buffer& buffer, Stream& stream, int64_t bytes) {
    if (buffer.bytes() < bytes) {
        stream.synchronize();
        buffer = Buffer();
        buffer =
            Buffer(device_, fmt::format("operations on {}", stream.name()), MemoryCategory::workspace, bytes);
    }
    return buffer.data();
}

namespace cpu {

void submit(Stream& stream, const char* label, std::function<void()> work) {
    static_cast<CpuStream&>(stream).submit(label, std::move(work));
}

}  // namespace cpu

// SPEEDRUN_CPU_LEVEL is the name of this level's object in level.h, from kernels/CMakeLists.txt.
extern "C" const CpuLevel SPEEDRUN_CPU_LEVEL{
    [](CpuDevice& device, Isa isa) -> Ops* { return new CpuOps(device, isa); },
    cpu::product_workspace,
    cpu::run_product,
};

}  // namespace speedrun
