#include <algorithm>
#include <fstream>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

namespace {

// Of the last level, as Linux tells it: sysconf reports the host's on some virtual machines.
int64_t last_cache_bytes() {
    int64_t largest = 8 << 20;
    for (int index = 0; index < 5; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        int64_t kibibytes = 0;
        if (file >> kibibytes) largest = std::max(largest, kibibytes << 10);
    }
    return largest;
}

}  // namespace

Backend make_cpu_backend(int num_threads) {
    Backend backend;
    auto device = std::make_unique<CpuDevice>(num_threads);
    backend.description = {{"kind", "cpu"},
                           {"threads", device->num_threads()},
                           {"library", cpu_library_version()},
                           {"avx512_bf16", cpu_has_bf16()}};
    backend.cache_bytes = last_cache_bytes();
    backend.copy_bytes = 2 * backend.cache_bytes;  // two buffers: four times the cache
    backend.product_size = 2048;
    backend.library_matmul = true;
    backend.device = std::move(device);
    backend.ops = make_cpu_ops(*backend.device);
    return backend;
}

}  // namespace speedrun::bench
