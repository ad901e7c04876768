// StepRunner as a RunState: snapshots of its state for checkpoints, and state that a checkpoint has set.
#include "kernels/device/error.h"
#include "train/engine/step_runner.h"

namespace speedrun {

void StepRunner::snapshot(const StateCopies& copies) {
    refresh_copies();
    schedule_.copy_state(copies);
    Snapshot& snapshot = snapshots_[static_cast<size_t>(enqueued_) % snapshots_.size()];
    runtime_.copy().record(*snapshot.copied);
    snapshot.enqueued = last_snapshot_ = enqueued_;
}

double StepRunner::idle_ms() {
    if (enqueued_ == 0) return 0;
    const Event& done = *slots_[(enqueued_ - 1) % slots_.size()].step_done;
    if (!done.complete()) return 0;
    runtime_.compute().record(*idle_until_);
    runtime_.compute().synchronize();
    return idle_until_->elapsed_ms_since(done);
}

void StepRunner::await_snapshot() {
    if (last_snapshot_ < 0) throw_internal("no snapshot was taken");
    snapshots_[static_cast<size_t>(last_snapshot_) % snapshots_.size()].copied->synchronize();
}

void StepRunner::publish_state(int64_t steps) {
    steps_ = steps;
    model().parameters().publish_shards();
    schedule_.gather_all();
}

}  // namespace speedrun
