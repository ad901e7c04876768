// build: in speedrun_simt_executor
#include "tests/simt/simt_device.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace speedrun {

bool is_captured(const Stream& /*stream*/) {
    return false;  // no graphs
}

}  // namespace speedrun

namespace speedrun::simt {

namespace {

constexpr size_t kAlignment = 256;  // as cudaMalloc's

struct Allocations {
    std::mutex mutex;
    std::map<uintptr_t, uintptr_t> ends;  // key: begin
};
Allocations& allocations() {
    static Allocations instance;
    return instance;
}

CpuStream& cpu_stream(Stream& stream) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    return simt_stream ? simt_stream->cpu() : static_cast<CpuStream&>(stream);
}

}  // namespace

void* SimtDevice::allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, size);
    if (!data) throw_usage("out of memory: {} bytes more do not fit", bytes);
    std::memset(data, 0, size);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard lock(allocations().mutex);
    allocations().ends[begin] = begin + static_cast<size_t>(bytes);
    return data;
}

void SimtDevice::release(void* data, int64_t /*bytes*/) noexcept {
    {
        const std::lock_guard lock(allocations().mutex);
        allocations().ends.erase(reinterpret_cast<uintptr_t>(data));
    }
    std::free(data);
}

std::vector<DeviceRange> device_memory() {
    const std::lock_guard lock(allocations().mutex);
    std::vector<DeviceRange> ranges;
    for (const auto& [begin, end] : allocations().ends) ranges.push_back({begin, end});
    return ranges;
}

void submit(Stream& stream, Launch launch) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    const Options options = simt_stream ? simt_stream->next_options() : Options{};
    const char* const label = launch.function;
    cpu_stream(stream).submit(label, [launch = std::move(launch), options] { execute(launch, options); });
}

int64_t max_shared_memory(Stream& stream) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    return simt_stream ? simt_stream->options().shared_memory : Options{}.shared_memory;
}

int64_t multiprocessors(Stream& stream) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    return simt_stream ? simt_stream->options().multiprocessors : Options{}.multiprocessors;
}

void poison(Stream& stream, void* data, int64_t bytes) {
    cpu_stream(stream).submit("poison", [=] { std::memset(data, 0xff, static_cast<size_t>(bytes)); });
}

}  // namespace speedrun::simt
