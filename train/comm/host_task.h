// Runs host code in stream order: the only place that depends on how each kind of stream runs a collective on host memory.
#pragma once

#include <functional>

#include "kernels/device/device.h"

namespace speedrun {

// Runs `work` on the stream's own thread, in stream order. An error that it throws is rethrown by Stream::synchronize. `label`
// must have static storage. `work` may access host memory only, also on a stream of a GPU.
void enqueue_on_host(Stream& stream, const char* label, std::function<void()> work);

}  // namespace speedrun
