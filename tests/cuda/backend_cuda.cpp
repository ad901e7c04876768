// A GPU as a backend of tests/kernels. Linked with tests/cuda/fake_cudart*.cpp it is a GPU that runs no
// kernels.
#include <utility>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_info.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/kernels/backends.h"

namespace speedrun::testing {

namespace {

// num_threads: the fixture runs every call three times; on a GPU these are reruns.
Backend make_cuda(int /*num_threads*/, bool dry) {
    Backend backend;
    backend.device = std::make_unique<CudaDevice>(0, dry);
    backend.ops = make_cuda_ops(*backend.device);
    return backend;
}

Backend make_wgmma(int /*num_threads*/, bool dry) {
    Backend backend;
    backend.device = std::make_unique<CudaDevice>(0, dry);
    backend.ops = make_cuda_ops(*backend.device, nullptr, make_wgmma_attention(*backend.device), true);
    return backend;
}

void submit_cuda(Stream& stream, std::function<void()> work) {
    static_cast<CudaStream&>(stream).submit("test", std::move(work));
}

constexpr BackendFactory kCuda{"cuda", make_cuda, submit_cuda};
constexpr BackendFactory kWgmma{"cuda_wgmma", make_wgmma, submit_cuda};

}  // namespace

const std::vector<const BackendFactory*>& backends() {
    static const std::vector<const BackendFactory*> all = {&kCuda};
    return all;
}

const std::vector<const BackendFactory*>& wgmma_backends() {
    static const std::vector<const BackendFactory*> all = [] {
        std::vector<const BackendFactory*> some = backends();
        const CudaInfo info = query_cuda();
        if (!info.gpus.empty() && info.gpus[0].major == 9 && info.gpus[0].minor == 0) some.push_back(&kWgmma);
        return some;
    }();
    return all;
}

}  // namespace speedrun::testing
