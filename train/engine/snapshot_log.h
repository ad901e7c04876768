// SnapshotLog: events of the last snapshots of the state on the copy stream.
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

    // After the copies of the state after `steps` steps are enqueued on the copy stream.
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
    // Returns the time in ms from `event` to the end of the snapshot after `steps` steps, which must be complete; 0 if it ended
    // before, or if there is none.
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
    int64_t newest_ = -1;  // steps before the newest snapshot
};

}  // namespace speedrun
