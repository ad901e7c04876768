// A world for tensors in memory that the host cannot read: each collective of another world, on a copy of the data in pinned
// host memory. Copy, collective and copy back are enqueued in order on the same stream. Any number of ranks can share a GPU,
// and sums are bitwise equal to the other world's. NCCL is faster.
#pragma once

#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// `world` and `device` must outlive the result; the communicators take tensors of `device`. A communicator's staging memory
// grows to its largest collective. Its collectives cannot be captured in a graph.
std::unique_ptr<World> make_staged_world(World& world, Device& device);

}  // namespace speedrun
