// A test of this machine's driver: do graphs wait for events as streams do?
#pragma once

#include <string>

#include "kernels/device/device.h"

namespace speedrun {

// Steps are captured as graphs on one stream that wait for events of other streams, which are recorded anew
// before each launch. NVIDIA documents for a graph's own records that they act at every launch, and not for
// its waits: a wait that kept the record of its capture would let forward read parameters that the optimizer
// is still writing, without an error. Says what is wrong, or nothing. For CudaDevice::capture_graph() before
// its first graph. If a wait does not end within ten seconds it says so on stderr and ends the process: a
// stream that waits for ever cannot be destroyed.
std::string find_graph_wait_fault(Device& device);

}  // namespace speedrun
