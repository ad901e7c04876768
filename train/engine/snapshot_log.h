// SnapshotLog: events that mark the end of the last snapshots on the copy stream.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "kernels/runtime/runtime.h"

namespace speedrun {

class SnapshotLog {
  public:
    // The runtime must outlive it.
    explicit SnapshotLog(Runtime& runtime) : runtime_(runtime) {
        for (Snapshot& snapshot : last_) snapshot.copied = runtime.device().create_event(EventKind::timed);
    }

    // Call after enqueuing the copies of the state after `steps` steps on the copy stream.
    void record(int64_t steps) {
        Snapshot& snapshot = at(steps);
        runtime_.copy().record(*snapshot.copied);
        snapshot.steps = newest_ = steps;
    }
    // Waits until the newest snapshot is copied.
    void await() {
        if (newest_ < 0) throw_internal("no snapshot was taken");
        at(newest_).copied->synchronize();
    }
    // Returns the ms from `event` to the end of the snapshot after `steps` steps, which must be complete. Returns 0 if
    // the snapshot ended before the event or does not exist.
    double ms_after(const Event& event, int64_t steps) {
        const Snapshot& snapshot = at(steps);
        return snapshot.steps == steps ? std::max(0.0, snapshot.copied->elapsed_ms_since(event)) : 0;
    }

  private:
    struct Snapshot {
        int64_t steps = -1;
        std::unique_ptr<Event> copied;
    };
    Snapshot& at(int64_t steps) { return last_[static_cast<size_t>(steps) % last_.size()]; }

    Runtime& runtime_;
    std::array<Snapshot, 2> last_;
    int64_t newest_ = -1;  // trained steps at the newest snapshot
};

}  // namespace speedrun
