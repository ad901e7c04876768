#include "kernels/cuda/ops/cuda_ops.h"

#include <utility>

#include "kernels/cuda/blocks/launch.h"

namespace speedrun {

CudaOps::CudaOps(Device& device, std::unique_ptr<MatmulLibrary> library,
                 std::unique_ptr<AttentionLibrary> attention)
    : library_(std::move(library)), attention_(std::move(attention)), workspaces_(device, "operations") {}

CudaOps::~CudaOps() = default;

std::vector<std::string> CudaOps::notes() const {
    std::vector<std::string> all = library_ ? library_->notes() : std::vector<std::string>{};
    if (!attention_) return all;
    for (std::string& note : attention_->notes()) all.push_back(std::move(note));
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
                                   std::unique_ptr<AttentionLibrary> attention) {
    return std::make_unique<CudaOps>(device, std::move(library), std::move(attention));
}

}  // namespace speedrun
