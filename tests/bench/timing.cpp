#include "tests/bench/timing.h"

#include <algorithm>
#include <numeric>

namespace speedrun::bench {

Timing summarize(std::vector<double> milliseconds) {
    if (milliseconds.empty()) throw_internal("no times to summarise");
    std::sort(milliseconds.begin(), milliseconds.end());
    const size_t count = milliseconds.size();
    const double median = count % 2 == 1 ? milliseconds[count / 2]
                                         : (milliseconds[count / 2 - 1] + milliseconds[count / 2]) / 2;
    // Smallest time that at least 90% do not exceed.
    const double p90 = milliseconds[(count * 9 + 9) / 10 - 1];
    return {static_cast<int>(count), median, milliseconds.front(), p90};
}

void settle(Stream& stream) {
    try {
        stream.synchronize();
    } catch (const std::exception&) {  // errors after the failure that is already being handled
    }
}

Timer::Timer(Device& device, Stream& stream, std::function<void()> head_start)
    : stream_(stream), head_start_(std::move(head_start)) {
    for (int i = 0; i < kBatch; ++i) {
        begin_.push_back(device.create_event(EventKind::timed));
        end_.push_back(device.create_event(EventKind::timed));
    }
}

void Timer::batch(const std::vector<std::function<void()>>& calls, int count,
                  std::vector<double>& milliseconds) {
    if (head_start_) head_start_();
    for (int i = 0; i < count; ++i) {
        stream_.record(*begin_[i]);
        calls[next_++ % calls.size()]();
        stream_.record(*end_[i]);
    }
    stream_.synchronize();
    for (int i = 0; i < count; ++i) milliseconds.push_back(end_[i]->elapsed_ms_since(*begin_[i]));
}

Timing Timer::time(const std::vector<std::function<void()>>& calls, const TimingOptions& options) {
    for (const auto& call : calls) call();
    stream_.synchronize();
    next_ = 0;
    std::vector<double> milliseconds;
    int count = 1;  // the first repetition determines how many fit
    while (true) {
        batch(calls, count, milliseconds);
        const int done = static_cast<int>(milliseconds.size());
        const double spent = std::accumulate(milliseconds.begin(), milliseconds.end(), 0.0);
        const double left = options.seconds * 1e3 - spent, mean = std::max(spent / done, 1e-4);
        const int requested =
            std::max(static_cast<int>(std::min(left / mean, 1e6)), options.min_repetitions - done);
        count = std::min({requested, options.max_repetitions - done, kBatch});
        if (count <= 0) return summarize(std::move(milliseconds));
    }
}

}  // namespace speedrun::bench
