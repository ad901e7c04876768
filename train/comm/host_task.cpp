#include "train/comm/host_task.h"

#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/device/gpu_interop.h"

namespace speedrun {

void enqueue_on_host(Stream& stream, const char* label, std::function<void()> work) {
    if (auto* const cpu_stream = dynamic_cast<CpuStream*>(&stream))
        return cpu_stream->submit(label, std::move(work));
    if (!submit_to_gpu_stream(stream, label, std::move(work)))
        throw_internal("{}: stream {} runs no host code", label, stream.name());
}

}  // namespace speedrun
