// The CUDA device alone; most of the program wants cuda_backend.h.
#pragma once

#include "kernels/cuda/cuda_backend.h"

namespace speedrun {

// Throws a usage error where there is no such GPU; a dry one needs none.
std::unique_ptr<Device> make_cuda_device(int index, bool dry);

}  // namespace speedrun
