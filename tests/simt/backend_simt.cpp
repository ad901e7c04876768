// The .cu kernels in the executor of this folder, as backends of tests/kernels.
#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/backends.h"
#include "tests/simt/simt_device.h"

namespace speedrun::testing {

namespace {

// The fixture runs every call with one thread, again, and with two, and compares the bits: here the number of
// threads chooses the order in which those of a block run.
Backend make_simt(simt::Order order, bool dry) {
    Backend backend;
    backend.device = std::make_unique<simt::SimtDevice>(simt::Options{order}, dry);
    backend.ops = make_cuda_ops(*backend.device);
    return backend;
}

Backend make_forward_reverse(int num_threads, bool dry) {
    return make_simt(num_threads == 1 ? simt::Order::forward : simt::Order::reverse, dry);
}

Backend make_random_forward(int num_threads, bool dry) {
    return make_simt(num_threads == 1 ? simt::Order::random : simt::Order::forward, dry);
}

void submit_simt(Stream& stream, std::function<void()> work) {
    static_cast<simt::SimtStream&>(stream).cpu().submit("test", std::move(work));
}

constexpr BackendFactory kSimt{"simt", make_forward_reverse, submit_simt};
constexpr BackendFactory kSimtRandom{"simt_random", make_random_forward, submit_simt};

}  // namespace

const std::vector<const BackendFactory*>& backends() {
    static const std::vector<const BackendFactory*> all = {&kSimt, &kSimtRandom};
    return all;
}

}  // namespace speedrun::testing
