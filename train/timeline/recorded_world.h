// A world of any size with only one real rank: host exchanges assume that the others send the same as this one. Collectives are
// passed to a listener and move no data.
#pragma once

#include <functional>
#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// Called for each collective when it is enqueued.
using CollectiveCallback = std::function<void(const Communicator&, const CollectiveCall&, Stream&)>;

// Returns rank 0 of `size` ranks, which enqueues on a dry device.
std::unique_ptr<World> make_recorded_world(int size, CollectiveCallback on_collective);

}  // namespace speedrun
