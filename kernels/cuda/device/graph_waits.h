// Tests whether graphs of this machine's driver wait for events as streams do.
#pragma once

#include <string>

#include "kernels/device/device.h"

namespace speedrun {

// Steps are captured as graphs on one stream. They wait for events of other streams, recorded again before
// each launch. NVIDIA documents that a graph's records act at every launch, but not that its waits do. A wait
// for the record at capture would let forward read parameters that the optimizer is still writing, without an
// error. Returns a description of the fault, or an empty string. CudaDevice::begin_graph() calls it before
// its first graph. If a wait does not end within ten seconds, it prints an error and ends the process: a
// stream that waits for ever cannot be destroyed.
std::string find_graph_wait_fault(Device& device);

}  // namespace speedrun
