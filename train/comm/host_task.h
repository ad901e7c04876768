// Host code in the order of a stream: the one place that knows how each kind of stream runs a collective on
// host memory.
#pragma once

#include <functional>

#include "kernels/device/device.h"

namespace speedrun {

// Runs `work` on the stream's own thread, after all that was enqueued before and before all that will be. An
// error that it throws reaches the host at Stream::synchronize. `label` lives for ever. `work` gets at the
// memory of the host alone, also on a GPU's stream.
void enqueue_on_host(Stream& stream, const char* label, std::function<void()> work);

}  // namespace speedrun
