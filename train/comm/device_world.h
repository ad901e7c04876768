// How ranks talk about tensors that are on GPUs.
#pragma once

#include <memory>
#include <string>

#include "train/comm/communicator.h"
#include "train/config/config.h"

namespace speedrun {

struct DeviceWorld {
    std::unique_ptr<World> world;  // null: `world` itself serves, its communicators can read the memory
    std::string note;              // what a user should know of the choice, one sentence; empty: nothing
};

// The world for tensors of this device as `parallel.communicator` has it; auto: NCCL where every rank has a
// GPU of its own and the library, else copies staged through the host. Collective over the ranks, which all
// decide alike. `world` and `device` must outlive the result. JointError (usage) if NCCL is asked for and
// cannot be had.
DeviceWorld make_device_world(World& world, Device& device, const ParallelConfig& config);

}  // namespace speedrun
