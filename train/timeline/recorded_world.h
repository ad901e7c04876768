// A world of any size of which one rank is here: the others are taken to say what it says. Collectives are
// told to a listener and move nothing.
#pragma once

#include <functional>
#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// A collective as it is enqueued.
using HearCollective = std::function<void(const Communicator&, const CollectiveCall&, Stream&)>;

// Rank 0 of so many, which enqueues on a dry device.
std::unique_ptr<World> make_recorded_world(int size, HearCollective hear);

}  // namespace speedrun
