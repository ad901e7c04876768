#include "tests/kernels/backends.h"

#include <utility>

#include "kernels/cpu/cpu_device.h"

namespace speedrun::testing {

namespace {

Backend make_cpu(int num_threads, bool dry) {
    Backend backend;
    backend.device = std::make_unique<CpuDevice>(num_threads, dry);
    backend.ops = make_cpu_ops(*backend.device);
    return backend;
}

void submit_cpu(Stream& stream, std::function<void()> work) {
    static_cast<CpuStream&>(stream).submit("test", std::move(work));
}

constexpr BackendFactory kCpu{"cpu", make_cpu, submit_cpu};

}  // namespace

const std::vector<const BackendFactory*>& backends() {
    static const std::vector<const BackendFactory*> all = {&kCpu};
    return all;
}

}  // namespace speedrun::testing
