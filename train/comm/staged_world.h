// A world for tensors that the host cannot read: each collective of another world, on a copy of the data in
// pinned memory of the host. Copy, collective and copy back are work of the same stream, one after the other.
// It lets any number of ranks share a GPU, and sums are those of the other world, bit for bit; for speed
// there is NCCL.
#pragma once

#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// `world` and `device`, whose tensors the communicators take, must outlive the result. A communicator's
// staging memory grows with the largest collective that it meets; its collectives cannot be captured in a
// graph.
std::unique_ptr<World> make_staged_world(World& world, Device& device);

}  // namespace speedrun
