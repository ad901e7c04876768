// Entry and exit of the world of ranks, for main.
#pragma once

#include <functional>
#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

// Returns the ranks started by a launcher, or a world of one rank without a launcher. Usage errors: a launcher and a build
// without MPI; a timeout that is not positive.
std::unique_ptr<World> make_world(const WorldOptions& options = {});

// As make_world(), for commands that train: a world of one rank under a launcher of several processes is a usage error, see
// expect_no_launcher(). `alone`: a world of one rank under any launcher.
std::unique_ptr<World> make_training_world(const WorldOptions& options, bool alone);

// Runs `body` as this rank and leaves the world; returns its result once all ranks are done. An error thrown by `body` is
// printed, with the rank's number if there are several. It is sent to all ranks and ends them with its exit code. A
// JointError is printed once.
int run_rank(World& world, const std::function<int()>& body);

}  // namespace speedrun
