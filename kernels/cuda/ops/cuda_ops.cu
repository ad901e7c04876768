#include "kernels/cuda/ops/cuda_ops.h"

#include <utility>

#include "kernels/cuda/blocks/launch.h"

namespace speedrun {

CudaOps::CudaOps(Device& device, std::unique_ptr<MatmulLibrary> library,
                 std::unique_ptr<AttentionLibrary> attention, bool wgmma_epilogues)
    : library_(std::move(library)),
      attention_(std::move(attention)),
      wgmma_epilogues_(wgmma_epilogues),
      workspaces_(device, "operations") {}

CudaOps::~CudaOps() = default;

std::vector<std::string> CudaOps::notes() const {
    std::vector<std::string> all;
    const auto add = [&](const auto& library) {
        if (!library) return;
        for (std::string& note : library->notes()) all.push_back(std::move(note));
    };
    add(library_);
    add(attention_);
    all.insert(all.end(), notes_.begin(), notes_.end());
    return all;
}

void* CudaOps::workspace(Stream& stream, int64_t bytes) {
    Buffer& buffer = workspaces_.at(stream, bytes);
#if SPEEDRUN_SIMT
    simt::poison(stream, buffer.data(), buffer.bytes());
#endif
    return buffer.data();
}

std::unique_ptr<Ops> make_cuda_ops(Device& device, std::unique_ptr<MatmulLibrary> library,
                                   std::unique_ptr<AttentionLibrary> attention, bool wgmma_epilogues) {
    return std::make_unique<CudaOps>(device, std::move(library), std::move(attention), wgmma_epilogues);
}

}  // namespace speedrun
