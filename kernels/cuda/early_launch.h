// Tests whether graphs of this machine's driver can contain kernels that begin early.
#pragma once

#include <string>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/ops/ops.h"

namespace speedrun {

// Captures an external wait, a kernel, a copy and a kernel, as the graph of a step has them, and launches the graph twice.
// Kernels must be allowed to begin early. Returns the error of the driver, or an empty string. Programmatic dependent launch
// after a node that is no kernel was reported to fail at capture on compute capability 12.0.
std::string find_early_launch_fault(CudaDevice& device, Ops& ops);

}  // namespace speedrun
