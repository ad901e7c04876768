// Times calls on a stream with device events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun::bench {

struct TimingOptions {
    double seconds = 0.3;  // maximum measured time, after min_repetitions
    int min_repetitions = 3;
    int max_repetitions = 1000;
};

struct Timing {
    int repetitions = 0;
    double median_ms = 0, min_ms = 0, p90_ms = 0;
};

// Median, minimum and 90th percentile. Throws if `milliseconds` is empty.
Timing summarize(std::vector<double> milliseconds);

// After a failure: waits until no enqueued work uses memory any more. Errors of that work are dropped.
void settle(Stream& stream);

class Timer {
  public:
    // head_start: enqueues about a millisecond of work, or none. If the host feeds the device, all calls are
    // then enqueued before the first one starts, so that no event waits for the host.
    Timer(Device& device, Stream& stream, std::function<void()> head_start);

    // Warms up with every call once, then times the calls in rotation. All memory of the calls must have been
    // written; the stream is idle afterwards.
    Timing time(const std::vector<std::function<void()>>& calls, const TimingOptions& options);

  private:
    static constexpr int kBatch = 32;

    void batch(const std::vector<std::function<void()>>& calls, int count, std::vector<double>& milliseconds);

    Stream& stream_;
    std::function<void()> head_start_;
    std::vector<std::unique_ptr<Event>> begin_, end_;
    size_t next_ = 0;  // next call in rotation
};

}  // namespace speedrun::bench
