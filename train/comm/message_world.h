// Ranks in separate processes that exchange messages: host memory, over MPI.
#pragma once

#include <memory>

#include "train/comm/communicator.h"
#include "train/comm/message_channel.h"

namespace speedrun {

// Bytes per peer of a slice of a reduction, whole cache lines. While one slice is summed the next is received, and the receive
// buffer stays small.
inline constexpr int64_t kSliceBytes = 256 << 10;

// World::abort of the result ends all processes and does not return. Tests lower slice_bytes.
std::unique_ptr<World> make_message_world(std::unique_ptr<MessageTransport> transport,
                                          const WorldOptions& options = {},
                                          int64_t slice_bytes = kSliceBytes);

}  // namespace speedrun
