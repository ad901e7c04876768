// Ranks as threads of one process. They read each other's memory, so that a missing wait in the engine is a data race
// for ThreadSanitizer. Tests of many ranks need no launcher.
#pragma once

#include <memory>
#include <vector>

#include "train/comm/communicator.h"

namespace speedrun {

// One World per rank, each for its own thread. They share their state and may be destroyed in any order.
std::vector<std::unique_ptr<World>> make_thread_worlds(int size, const WorldOptions& options = {});

}  // namespace speedrun
