// Selects the world for tensors on GPUs.
#pragma once

#include <memory>
#include <string>

#include "train/comm/communicator.h"
#include "train/config/config.h"

namespace speedrun {

struct DeviceWorld {
    std::unique_ptr<World> world;  // null: `world` itself, as its communicators can read the memory
    std::string note;              // one sentence for the user about the choice; may be empty
};

// Returns the world for tensors of this device, as `parallel.communicator` selects it. auto: NCCL if the library is available
// and every rank has its own GPU, else copies staged through the host. Collective over the ranks, which all make the same
// choice. `world` and `device` must outlive the result. Throws JointError (usage) if NCCL is requested but not available.
DeviceWorld make_device_world(World& world, Device& device, const ParallelConfig& config);

}  // namespace speedrun
