// Checkpointer: saves a run while it trains. The copy stream copies a snapshot to the host after the step and before
// the next step changes anything. A thread writes it while training continues. When the files of all ranks are synced,
// rank 0 commits them.
//
// The thread receives a snapshot only after its step's result is known, so that no checkpoint contains a diverged step.
// Write errors are reported and stored, and training continues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/checkpoint/run_state.h"

namespace speedrun {

// Loads a checkpoint into model and optimizers. Collective; no step may be in flight. The reader is indexed.
void load_checkpoint(const CheckpointReader& reader, Runtime& runtime, RunState& state);

class Checkpointer {
  public:
    // Receives text for the run's log and, if `problem`, for the user. Called on all ranks.
    using Report = std::function<void(const std::string& text, bool problem)>;

    struct Options {
        FileSystem* system = nullptr;              // null: the real file system
        int64_t max_fetched = kMaxNumbersFetched;  // RankFile::max_fetched
    };

    // Saves the run in folder `run`. Collective. The references must outlive the checkpointer.
    Checkpointer(const Config& config, const Ranks& ranks, Runtime& runtime, RunState& state, std::string run,
                 Report report, const Options& options);
    ~Checkpointer() { set_urgent(true); }
    Checkpointer(const Checkpointer&) = delete;
    Checkpointer& operator=(const Checkpointer&) = delete;

    // True if a checkpoint is due after `steps` steps.
    bool due(int64_t steps) const { return every_ > 0 && steps % every_ == 0; }
    // True from snapshot() until write_snapshot(): another snapshot would overwrite this one.
    bool awaits_result() const { return snapshot_steps_ >= 0; }
    // This function and the ones below are collective, with equal steps on all ranks. Enqueues the snapshot of the state
    // after `steps` steps. The last of them must be the newest enqueued step. Waits until the previous snapshot is written.
    void snapshot(int64_t steps);
    // Call after the result of the last of `steps` steps, if it is finite. Returns true if the snapshot is of that
    // state; then call write_snapshot().
    bool collected(int64_t steps);
    // Starts writing the snapshot. `info` needs no tensors and files.
    void write_snapshot(CheckpointInfo info);
    // Saves the current state and waits. No step may be in flight. No-op if the last checkpoint is of this step.
    void save(CheckpointInfo info);
    // Waits for pending writes. Afterwards all ranks have every problem.
    void finish();

    void continue_from(int64_t steps) { saved_ = steps; }
    // First write error; empty if there was none.
    const std::string& problem() const { return problem_; }
    // Returns the milliseconds in which the device was idle because the host waited for an earlier checkpoint, since
    // the last call.
    double take_wait_ms() { return std::exchange(wait_ms_, 0.0); }

  private:
    CheckpointFile write_from_snapshot(int64_t step);
    CheckpointFile write_from_device(int64_t step);
    RankFile rank_file(int64_t step) const {
        return {.step = step, .rank = ranks_.rank(), .max_fetched = max_fetched_};
    }
    // ends: index into pieces_ of the end of each bucket's pieces.
    void plan_copies(const std::vector<size_t>& ends);
    void begin(CheckpointInfo info);
    double commit_and_time() const;  // returns ms since begin(); removes the unfinished folder if it throws
    void leave_cores_to_training(std::chrono::nanoseconds worked);
    void set_urgent(bool urgent);
    void settle(bool wait);  // completes the writes of all ranks
    void settle_commit(bool wait);
    void end_commit();
    void commit(const std::vector<std::string>& outcomes);
    void fail(const std::string& text);

    const int64_t every_, keep_;
    const Ranks ranks_;
    Runtime& runtime_;
    RunState& state_;
    const std::string run_;
    const Report report_;
    FileSystem& system_;
    const int64_t max_fetched_;
    const std::vector<CheckpointTensor> tensors_;
    std::vector<StatePiece> pieces_;  // written by this rank: by bucket, then scales
    std::vector<int64_t> offset_;     // offset of each piece in the snapshot, bytes
    HostBuffer snapshot_;             // all pieces; empty without checkpoint.every
    StateCopies copies_;              // copies into the snapshot
    HostBuffer staging_;              // max_fetched_ elements
    int64_t snapshot_steps_ = -1, saved_ = -1;
    bool pending_ = false;  // ranks are writing or have not yet agreed that all are done
    bool commits_ = false;  // rank 0 may be committing: ranks have not yet agreed that it is done
    CheckpointInfo info_;   // pending checkpoint
    std::string outcome_;   // result of this rank's write; empty while it runs
    std::chrono::steady_clock::time_point began_;
    std::chrono::nanoseconds core_{0};  // CPU time for this rank's file
    std::string problem_;
    double wait_ms_ = 0;
    std::mutex mutex_;
    std::condition_variable urgent_changed_;
    bool urgent_ = false;                            // guarded by mutex_
    std::future<CheckpointFile> writing_;            // last members: destroyed before the state that they use
    std::future<std::optional<double>> committing_;  // ms since begin(); nullopt: failed and removed
};

}  // namespace speedrun
