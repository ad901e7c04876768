#include "kernels/cpu/cpu_ops.h"

#include <fmt/format.h>

#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/matmul_cache.h"

namespace speedrun {

CpuOps::CpuOps(CpuDevice& device)
    : device_(device),
      matmuls_(std::make_unique<MatmulCache>(device.num_threads())),
      own_products_(cpu::has_bf16_product()) {}

CpuOps::~CpuOps() = default;

void* CpuOps::workspace(Stream& stream, int64_t bytes) {
    Buffer& buffer = workspaces_[&stream];
    if (buffer.bytes() < bytes) {
        stream.synchronize();
        buffer = Buffer();
        buffer =
            Buffer(device_, fmt::format("operations on {}", stream.name()), MemoryCategory::workspace, bytes);
    }
    return buffer.data();
}

std::unique_ptr<Ops> make_cpu_ops(Device& device) {
    auto* cpu_device = dynamic_cast<CpuDevice*>(&device);
    if (!cpu_device) throw_internal("CPU operations need a CPU device, not '{}'", device.kind());
    return std::make_unique<CpuOps>(*cpu_device);
}

namespace cpu {

void submit(Stream& stream, const char* label, std::function<void()> work) {
    static_cast<CpuStream&>(stream).submit(label, std::move(work));
}

}  // namespace cpu
}  // namespace speedrun
