// Ranks that are processes and exchange messages: host memory, MPI underneath.
#pragma once

#include <memory>

#include "train/comm/communicator.h"
#include "train/comm/message_channel.h"

namespace speedrun {

// A reduction is cut into slices of so many bytes per peer: while one is summed, the next is under way, and the memory that
// slices arrive in stays small. Whole cache lines.
inline constexpr int64_t kSliceBytes = 256 << 10;

// World::abort of the result ends all processes and does not return. Tests lower slice_bytes.
std::unique_ptr<World> make_message_world(std::unique_ptr<MessageTransport> transport,
                                          const WorldOptions& options = {},
                                          int64_t slice_bytes = kSliceBytes);

}  // namespace speedrun
