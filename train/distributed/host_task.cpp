#include "train/distributed/host_task.h"

#include <utility>

#include "kernels/cpu/cpu_device.h"

namespace speedrun {

void enqueue_on_host(Stream& stream, const char* label, std::function<void()> work) {
    auto* const cpu_stream = dynamic_cast<CpuStream*>(&stream);
    if (!cpu_stream) throw_internal("{}: stream {} is not one of host memory", label, stream.name());
    cpu_stream->submit(label, std::move(work));
}

}  // namespace speedrun
