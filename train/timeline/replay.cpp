#include "train/timeline/replay.h"

#include <algorithm>
#include <limits>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Replay {
  public:
    Replay(const std::vector<ReplayItem>& items, int num_streams, const ResourceTimes& capacity)
        : items_(items),
          capacity_(capacity),
          spans_(items.size()),
          done_(items.size()),
          streams_(static_cast<size_t>(num_streams)) {
        for (size_t i = 0; i < items.size(); ++i) {
            if (items[i].waits_for >= static_cast<int>(i))
                throw_internal("item {} waits for item {}, which comes later", i, items[i].waits_for);
            const auto& busy = items[i].busy_s;
            if (items[i].delay_s < 0 || *std::min_element(busy.begin(), busy.end()) < 0)
                throw_internal("item {} takes a negative time", i);
            streams_.at(static_cast<size_t>(items[i].stream)).items.push_back(static_cast<int>(i));
        }
    }

    std::vector<ReplaySpan> run() {
        while (pass_what_takes_no_time()) pass_time();
        return std::move(spans_);
    }

  private:
    struct StreamState {
        std::vector<int> items;
        size_t next = 0;
        bool running = false;
        double delay = 0, work = 0;  // remaining for the running item
        int cause = -1;              // cause of the next item
    };

    static double longest(const ReplayItem& item) {
        return *std::max_element(item.busy_s.begin(), item.busy_s.end());
    }
    const ReplayItem& head(const StreamState& s) const {
        return items_[static_cast<size_t>(s.items[s.next])];
    }
    void end(StreamState& s) {
        const auto item = static_cast<size_t>(s.items[s.next]);
        spans_[item].end_s = now_;
        done_[item] = true;
        s.running = false;
        s.cause = static_cast<int>(item);
        ++s.next;
    }
    // Starts all items that can start; false if no stream runs any more.
    bool pass_what_takes_no_time() {
        for (bool moved = true; moved;) {
            moved = false;
            for (StreamState& s : streams_) {
                while (!s.running && s.next < s.items.size() && start(s)) moved = true;
            }
        }
        bool any = false;
        for (const StreamState& s : streams_) any = any || s.running;
        return any;
    }
    // Returns false if the stream has to wait.
    bool start(StreamState& s) {
        const ReplayItem& item = head(s);
        ReplaySpan& span = spans_[static_cast<size_t>(s.items[s.next])];
        if (item.waits_for >= 0 && !done_[static_cast<size_t>(item.waits_for)]) return false;
        span.begin_s = now_;
        span.cause = s.cause;
        if (item.waits_for >= 0 && spans_[static_cast<size_t>(item.waits_for)].end_s > ended(s.cause))
            span.cause = item.waits_for;
        s.running = true;
        s.delay = item.delay_s;
        s.work = longest(item);
        if (s.delay == 0 && s.work == 0) end(s);
        return true;
    }
    double ended(int item) const { return item < 0 ? -1 : spans_[static_cast<size_t>(item)].end_s; }

    void pass_time() {
        ResourceTimes needed{};
        for (const StreamState& s : streams_) {
            if (!s.running || s.delay > 0) continue;
            for (size_t r = 0; r < kNumResources; ++r) needed[r] += head(s).busy_s[r] / longest(head(s));
        }
        const auto rate = [&](const StreamState& s) {
            double slowest = 1;
            for (size_t r = 0; r < kNumResources; ++r)
                if (head(s).busy_s[r] > 0 && capacity_[r] > 0)
                    slowest = std::min(slowest, capacity_[r] / needed[r]);
            return slowest;
        };
        const auto left = [&](const StreamState& s) {
            return !s.running ? kNever : s.delay > 0 ? s.delay : s.work / rate(s);
        };
        double step = kNever;
        for (const StreamState& s : streams_) step = std::min(step, left(s));
        std::vector<double> rates;
        std::vector<bool> over;
        for (const StreamState& s : streams_) {
            rates.push_back(s.running && s.delay == 0 ? rate(s) : 0);
            over.push_back(s.running && left(s) <= step * (1 + kSameTime));
        }
        now_ += step;
        for (size_t i = 0; i < streams_.size(); ++i) {
            StreamState& s = streams_[i];
            if (!s.running) continue;
            if (s.delay > 0) {
                s.delay = over[i] ? 0 : s.delay - step;
                if (s.delay > 0 || s.work > 0) continue;
            } else {
                s.work = over[i] ? 0 : s.work - step * rates[i];
                if (s.work > 0) continue;
            }
            end(s);
        }
    }

    static constexpr double kSameTime = 1e-12;  // relative; rounding of sums

    const std::vector<ReplayItem>& items_;
    const ResourceTimes capacity_;
    std::vector<ReplaySpan> spans_;
    std::vector<bool> done_;
    std::vector<StreamState> streams_;
    double now_ = 0;
};

}  // namespace

std::vector<ReplaySpan> replay(const std::vector<ReplayItem>& items, int num_streams,
                               const ResourceTimes& capacity) {
    return Replay(items, num_streams, capacity).run();
}

}  // namespace speedrun
