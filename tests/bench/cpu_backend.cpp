#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

Backend make_cpu_backend(int num_threads) {
    Backend backend;
    auto device = std::make_unique<CpuDevice>(num_threads);
    backend.description = {{"kind", "cpu"},
                           {"threads", device->num_threads()},
                           {"isa", name_of(cpu_isa())}};
    backend.cache_bytes = last_cache_bytes();
    backend.ceilings = ceiling_sizes(*device);
    backend.library_matmul = true;
    backend.device = std::move(device);
    backend.ops = make_cpu_ops(*backend.device);
    return backend;
}

}  // namespace speedrun::bench
