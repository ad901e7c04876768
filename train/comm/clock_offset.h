// How far the clocks of ranks are apart, from the times at which they enter and leave barriers.
#pragma once

#include <cstdint>
#include <functional>

#include "train/comm/communicator.h"

namespace speedrun {

struct ClockOffset {
    int64_t offset_ns = 0;  // this rank's clock minus rank 0's
    int64_t error_ns = 0;   // the true offset is within this of it
    int64_t origin_ns = 0;  // rank 0's clock when the last barrier began
};

// The clock that streams of the CPU stamp their work with.
int64_t steady_now_ns();

// Collective. Nobody leaves a barrier before everybody has entered it: with enter and leave times e_0, x_0 of
// rank 0 and e, x of this rank, the offset lies between e - x_0 and x - e_0. Every barrier narrows the
// bounds; the middle of what is left is taken. Exactly 0 where the ranks share a kernel and so a clock
// (`kernel`: its boot id; empty: not known).
ClockOffset align_clocks(World& world, const std::function<int64_t()>& now, const std::string& kernel);

// This machine's boot id; "" if it does not say.
std::string boot_id();

}  // namespace speedrun
