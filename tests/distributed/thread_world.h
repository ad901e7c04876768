// Ranks that are threads of one process. They read each other's memory, so that a missing wait anywhere in
// the engine is a data race that ThreadSanitizer can see; and tests of many ranks need no launcher.
#pragma once

#include <memory>
#include <vector>

#include "train/comm/communicator.h"

namespace speedrun {

// One World per rank, each to be used by its own thread; they share their state and go in any order.
std::vector<std::unique_ptr<World>> make_thread_worlds(int size, const WorldOptions& options = {});

}  // namespace speedrun
