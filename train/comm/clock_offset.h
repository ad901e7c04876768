// Estimates clock offsets between ranks from the times at which they enter and leave barriers.
#pragma once

#include <cstdint>
#include <functional>

#include "train/comm/communicator.h"

namespace speedrun {

struct ClockOffset {
    int64_t offset_ns = 0;  // this rank's clock minus rank 0's
    int64_t error_ns = 0;   // bound on the error of offset_ns
    int64_t origin_ns = 0;  // rank 0's clock at the start of the last barrier
};

// The clock used for time stamps of CPU streams.
int64_t steady_now_ns();

// Collective. No rank leaves a barrier before all ranks have entered it. Let e_0, x_0 be the enter and leave times of rank 0,
// and e, x those of this rank. The offset is then between e - x_0 and x - e_0. Each barrier narrows the interval; the result
// is its midpoint. The offset is exactly 0 if the ranks share a kernel and thus a clock (`kernel`: its boot id; empty if
// unknown).
ClockOffset align_clocks(World& world, const std::function<int64_t()>& now, const std::string& kernel);

// Returns this machine's boot id; "" if unknown.
std::string boot_id();

}  // namespace speedrun
