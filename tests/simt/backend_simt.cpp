// The .cu kernels in the executor of this folder, as backends of tests/kernels.
#include <utility>

#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/kernels/backends.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing {

namespace {

// The fixture runs every call with one thread, again, and with two, and compares the bits. Here the number of
// threads selects the order of a block's threads, and little shared memory or that of an H100.
Backend make_simt(simt::Order order, int num_threads, bool dry, bool wgmma = false) {
    simt::Options options{.order = order, .kernels_wait = true};
    if (num_threads > 1) options.shared_memory = simt::kSharedMemoryOfH100;
    Backend backend;
    backend.device = std::make_unique<simt::SimtDevice>(options, dry);
    backend.ops = make_cuda_ops(*backend.device, nullptr,
                                wgmma ? make_wgmma_attention(*backend.device) : nullptr, wgmma);
    return backend;
}

Backend make_forward_reverse(int num_threads, bool dry) {
    return make_simt(num_threads == 1 ? simt::Order::forward : simt::Order::reverse, num_threads, dry);
}

Backend make_random_forward(int num_threads, bool dry) {
    return make_simt(num_threads == 1 ? simt::Order::random : simt::Order::forward, num_threads, dry);
}

// Attention and matmuls with epilogues by the kernels for compute capability 9.0.
Backend make_wgmma(int num_threads, bool dry) {
    return make_simt(num_threads == 1 ? simt::Order::random : simt::Order::reverse, num_threads, dry, true);
}

void submit_simt(Stream& stream, std::function<void()> work) {
    static_cast<simt::SimtStream&>(stream).cpu().submit("test", std::move(work));
}

constexpr BackendFactory kSimt{"simt", make_forward_reverse, submit_simt};
constexpr BackendFactory kSimtRandom{"simt_random", make_random_forward, submit_simt};
constexpr BackendFactory kSimtWgmma{"simt_wgmma", make_wgmma, submit_simt};

}  // namespace

const std::vector<const BackendFactory*>& backends() {
    static const std::vector<const BackendFactory*> all = {&kSimt, &kSimtRandom};
    return all;
}

const std::vector<const BackendFactory*>& wgmma_backends() {
    static const std::vector<const BackendFactory*> all = {&kSimt, &kSimtRandom, &kSimtWgmma};
    return all;
}

}  // namespace speedrun::testing
