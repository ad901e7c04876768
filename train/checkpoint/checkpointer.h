// Checkpointer: saves a run while it goes on. A snapshot is copied to the host on the copy stream, behind the
// step and before the next one changes anything; a thread writes it while training continues; when the files
// of all ranks are on the disk, the first rank commits them.
//
// A snapshot is handed to the thread only when its step's result is known, so that no checkpoint holds a step
// that diverged. What cannot be written is reported and remembered, and training goes on.
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

// The state of a checkpoint into model and optimizers; all ranks, nothing in flight. The reader is indexed.
void load_checkpoint(const CheckpointReader& reader, Runtime& runtime, RunState& state);

class Checkpointer {
  public:
    // Receives what the run's log should say, and (`problem`) the user too. On all ranks.
    using Report = std::function<void(const std::string& text, bool problem)>;

    struct Options {
        FileSystem* system = nullptr;                // null: the real one
        int64_t most_fetched = kMostNumbersFetched;  // RankFile::most_fetched
    };

    // Saves the run in folder `run`; collective. The references must outlive it.
    Checkpointer(const Config& config, const Ranks& ranks, Runtime& runtime, RunState& state, std::string run,
                 Report report, const Options& options);
    ~Checkpointer() { set_hurry(true); }
    Checkpointer(const Checkpointer&) = delete;
    Checkpointer& operator=(const Checkpointer&) = delete;

    // After this many steps, is it time for one?
    bool due(int64_t steps) const { return every_ > 0 && steps % every_ == 0; }
    // True from snapshot() until write_snapshot(): another snapshot would overwrite this one.
    bool awaits_result() const { return snapshot_steps_ >= 0; }
    // All of the following: by all ranks, for the same steps. Enqueues the snapshot of the state after
    // `steps` steps, the last of which was enqueued last. Waits for the snapshot before to be written.
    void snapshot(int64_t steps);
    // After the result of the last of `steps` steps, if it is good. Returns true if there is a snapshot of the state after them:
    // write_snapshot() follows.
    bool collected(int64_t steps);
    // Begins to write the snapshot. `info` needs no tensors and files.
    void write_snapshot(CheckpointInfo info);
    // Saves now, waiting for all of it; nothing is in flight. Does nothing if the last one is of this step.
    void save(CheckpointInfo info);
    // Waits for what is being written. Afterwards all ranks know of every problem.
    void finish();

    void continue_from(int64_t steps) { saved_ = steps; }
    // The first thing that could not be saved; empty: nothing.
    const std::string& problem() const { return problem_; }
    // How long the device has had nothing to do because the host waited for the writing of an earlier
    // checkpoint, since the last call.
    double take_wait_ms() { return std::exchange(wait_ms_, 0.0); }

  private:
    CheckpointFile write_from_snapshot(int64_t step);
    CheckpointFile write_from_device(int64_t step);
    RankFile rank_file(int64_t step) const {
        return {.step = step, .rank = ranks_.rank(), .most_fetched = most_fetched_};
    }
    // ends: indices of pieces_, the end of each bucket's pieces.
    void plan_copies(const std::vector<size_t>& ends);
    void begin(CheckpointInfo info);
    double commit_and_time() const;  // ms since begin(); removes the unfinished folder if it throws
    void leave_cores_to_training(std::chrono::nanoseconds worked);
    void set_hurry(bool hurry);
    void settle(bool wait);  // the writing of all ranks
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
    const int64_t most_fetched_;
    const std::vector<CheckpointTensor> tensors_;
    std::vector<StatePiece> pieces_;  // written by this rank: by bucket, then scales
    std::vector<int64_t> offset_;     // bytes, of each piece in the snapshot
    HostBuffer snapshot_;             // all pieces; empty without checkpoint.every
    StateCopies copies_;              // into the snapshot
    HostBuffer staging_;              // most_fetched_ numbers
    int64_t snapshot_steps_ = -1, saved_ = -1;
    bool pending_ = false;  // ranks are writing, or have not told each other that they are done
    bool commits_ = false;  // the first rank may be committing: ranks have not yet agreed that it is done
    CheckpointInfo info_;   // of what is pending or being committed
    std::string outcome_;   // of this rank's writing; empty: not yet
    std::chrono::steady_clock::time_point began_;
    std::chrono::nanoseconds core_{0};  // that writing this rank's file took
    std::string problem_;
    double wait_ms_ = 0;
    std::mutex mutex_;
    std::condition_variable hurried_;
    bool hurry_ = false;                             // guarded by mutex_
    std::future<CheckpointFile> writing_;            // last members: destroyed before the state that they use
    std::future<std::optional<double>> committing_;  // ms since begin(); nullopt: it failed and was removed
};

}  // namespace speedrun
