#include "train/comm/running_clock.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace speedrun {

RunningClock::RunningClock(double limit_s, Source source)
    : pause_s_(std::max(limit_s / 2, kLongestTick)), source_(std::move(source)), last_(source_()) {}

RunningClock::Reading RunningClock::read() {
    std::lock_guard lock(mutex_);
    const double now = source_(), gap = now - last_;
    last_ = now;
    reading_.seconds += std::min(gap, kLongestTick);
    if (gap >= pause_s_ && gap > kLongestTick) {
        ++reading_.num_pauses;
        reading_.pause_s = gap;
    }
    return reading_;
}

// CLOCK_BOOTTIME, unlike CLOCK_MONOTONIC, includes the time in which the host is suspended.
double RunningClock::seconds_since_boot() {
    timespec time{};
    if (clock_gettime(CLOCK_BOOTTIME, &time) != 0) clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool Silence::exceeds(double seconds) {
    const RunningClock::Reading now = clock_->read();
    if (now.num_pauses != since_.num_pauses) since_ = now;
    return now.seconds - since_.seconds > seconds;
}

}  // namespace speedrun
