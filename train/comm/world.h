// Entering and leaving the world of ranks: what main needs.
#pragma once

#include <functional>
#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// The ranks that a launcher started, or a world of one if none did. Usage errors: a launcher, but a build
// without MPI; a timeout that is not positive.
std::unique_ptr<World> make_world(const WorldOptions& options = {});

// For commands that train. A world of one rank although a launcher started more processes is a usage error, as
// expect_no_launcher() says it. `alone`: a world of one rank under any launcher.
std::unique_ptr<World> make_training_world(const WorldOptions& options, bool alone);

// Runs `body` as this rank and leaves the world: its result, once all ranks are through. An error that leaves
// `body` is printed with the rank's number (if there are several), told to all ranks, and ends them all with
// its exit code; a JointError is printed once.
int run_rank(World& world, const std::function<int()>& body);

}  // namespace speedrun
