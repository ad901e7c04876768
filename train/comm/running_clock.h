// Time in which this process ran. Time in which a rank is stopped (SIGSTOP, a frozen container) or suspended with its host must
// not count as silence of its peers: all ranks may have been stopped together.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace speedrun {

class RunningClock {
  public:
    // Seconds since any origin. Must advance while the process is stopped or the host is suspended.
    using Source = std::function<double()>;
    struct Reading {
        double seconds;      // in which the process ran
        int64_t num_pauses;  // detected so far
        double pause_s;      // duration of the last pause
    };

    // limit_s: the longest wait to measure. A gap of half of it is a pause.
    explicit RunningClock(double limit_s, Source source = seconds_since_boot);

    // Returns the time; any thread. Some thread must call it every kLongestTick; of a longer gap only kLongestTick counts.
    Reading read();

    static constexpr double kLongestTick = 0.25;  // s
    static double seconds_since_boot();

  private:
    const double pause_s_;
    const Source source_;
    std::mutex mutex_;  // guards the members below
    double last_;
    Reading reading_{};
};

// Duration of a peer's silence. A pause of this process restarts it: peers that were stopped too may continue later.
class Silence {
  public:
    explicit Silence(RunningClock& clock) : clock_(&clock) { restart(); }
    void restart() { since_ = clock_->read(); }
    // True if the silence is longer than `seconds`.
    bool exceeds(double seconds);

  private:
    RunningClock* clock_;
    RunningClock::Reading since_{};
};

}  // namespace speedrun
