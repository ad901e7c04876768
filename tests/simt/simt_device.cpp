#include "tests/simt/simt_device.h"

#include <cstdlib>
#include <cstring>

namespace speedrun {

bool is_recorded(const Stream& /*stream*/) {
    return false;  // no graphs here
}

}  // namespace speedrun

namespace speedrun::simt {

namespace {

constexpr size_t kAlignment = 256;  // as cudaMalloc's

CpuStream& cpu_stream(Stream& stream) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    return simt_stream ? simt_stream->cpu() : static_cast<CpuStream&>(stream);
}

}  // namespace

void* SimtDevice::allocate(int64_t bytes) {
    if (dry() || bytes == 0) return nullptr;
    const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* const data = std::aligned_alloc(kAlignment, size);
    if (!data) throw_usage("out of memory: {} bytes more do not fit", bytes);
    std::memset(data, 0, size);
    return data;
}

void SimtDevice::release(void* data, int64_t /*bytes*/) noexcept {
    std::free(data);
}

void submit(Stream& stream, Launch launch) {
    auto* const simt_stream = dynamic_cast<SimtStream*>(&stream);
    const Options options = simt_stream ? simt_stream->next_options() : Options{};
    const char* const label = launch.function;
    cpu_stream(stream).submit(label, [launch = std::move(launch), options] { execute(launch, options); });
}

void poison(Stream& stream, void* data, int64_t bytes) {
    cpu_stream(stream).submit("poison", [=] { std::memset(data, 0xff, static_cast<size_t>(bytes)); });
}

}  // namespace speedrun::simt
