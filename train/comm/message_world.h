// Ranks that are processes and exchange messages: host memory, MPI underneath.
#pragma once

#include <memory>

#include "train/comm/communicator.h"
#include "train/comm/message_channel.h"

namespace speedrun {

// World::abort of the result ends all processes and does not return.
std::unique_ptr<World> make_message_world(std::unique_ptr<MessageTransport> transport,
                                          const WorldOptions& options = {});

}  // namespace speedrun
