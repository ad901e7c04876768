// The world of one rank: sums are what they were, gathers are copies.
#pragma once

#include <memory>

#include "train/comm/communicator.h"

namespace speedrun {

std::unique_ptr<World> make_self_world();

}  // namespace speedrun
