// The training loop of a run: load, forward, backward, step, log. Everything it does to the outside world
// goes through RunFolder (files) and Progress (screen). All ranks run the same loop, and decide alike; the
// first one speaks.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "data/prefetcher.h"
#include "train/checkpoint/checkpointer.h"
#include "train/comm/clock_offset.h"
#include "train/engine/runner_state.h"
#include "train/runlog/progress.h"
#include "train/runlog/run_folder.h"
#include "train/runlog/train_clock.h"
#include "train/sharding/ranks.h"
#include "train/trace/timeline.h"

namespace speedrun {

struct TrainerOptions {
    bool quiet = false;
    bool warm_up = true;                            // off only in the test that shows that it changes nothing
    int64_t trace_first = -1, trace_last = -1;      // steps whose timeline is written to trace.json
    const std::atomic<int>* stop_signal = nullptr;  // not 0: finish the step and end, all ranks
    const CheckpointReader* resume = nullptr;       // continue from there; needed by the constructor alone
    std::string data{};  // identity of the shards, JSON, for checkpoints; empty: they have none
    FileSystem* file_system = nullptr;           // for checkpoints; a test passes its own
    int64_t most_fetched = kMostNumbersFetched;  // RankFile::most_fetched; tests lower it
    double began_ms = 0;  // the process's age when the run began, for its start-up time; 0: with the process
};

class Trainer {
  public:
    // Opens the data, builds the model, warms up and initialises. The folder must outlive the trainer; that
    // of a rank that is not the first is silent. Collective over the ranks, as are run() and its errors.
    Trainer(const Config& config, Runtime& runtime, const Ranks& ranks, RunFolder& folder,
            const TrainerOptions& options);
    // An error leaves work on the streams, and a snapshot is copied into the checkpointer's memory.
    ~Trainer() { runtime_.drain(); }

    // Trains to the end of the schedule (or a stop signal), validates, and returns what summary.json says.
    // Throws JointError(diverged) after having written the summary, and JointError(data), after a checkpoint too, if a
    // rank's shards can no longer be read.
    RunSummary run();

    StepRunner& runner() { return runner_; }
    // What could not be written while training went on; of the run folder's own files, the first rank
    // knows. Empty: nothing.
    std::string problem() const;
    // Before run(): cuts the window of the trace to the run's steps. Returns a warning if none is left.
    std::string cut_trace_window();

  private:
    int64_t resume(const CheckpointReader* from);  // the first step to run
    void resume_time_to_target(const CheckpointInfo& info, const RunFolder::Kept& kept);
    void train();  // the steps, until the schedule's end or a stop
    void collect();
    void pause_before(int64_t step);     // validates and saves outside the clock, where that is due
    void snapshot_after(int64_t steps);  // once the last of them is enqueued
    void save_last();                    // after the loop
    void warn_of_unsaved_steps();
    // Steps after which the last checkpoint is taken: all of them, or the steps up to the last whole period.
    int64_t last_saved() const {
        const int64_t total = config_.schedule.total_steps();
        return total - total % period_;
    }
    // True if no gradient is pending after `steps` steps. Checkpoints do not hold pending gradients.
    bool between_periods(int64_t steps) const { return steps % period_ == 0; }
    double flops_before(int64_t step) const;  // of all ranks, in the steps before this one
    CheckpointInfo checkpoint_info() const;   // after the last collected step
    void report(const std::string& text, bool problem);
    void validate(int64_t step);  // outside the clock
    void start_clock();
    void stop_clock();
    void trace(int64_t step);
    bool reaches_target(double loss) const {
        return config_.record.target_loss > 0 && loss <= config_.record.target_loss;
    }
    bool signalled() const { return options_.stop_signal && options_.stop_signal->load() != 0; }
    // True if the batches of all steps exist that can run before all ranks have agreed to stop. A failure that is found
    // later would leave other ranks waiting in the middle of a step.
    bool have_batches(int64_t step);
    // Steps after `step` that run at most if it is the one that asks to stop.
    int64_t steps_ahead() const { return period_ + 1; }
    void expect_readable();  // throws JointError(data) on all ranks if one has an unreadable shard
    // Alone we end at once. Many ranks have to end at the same step: one whose result says so, see collect().
    bool stopped() const { return ranks_stop_ || (ranks_.size() == 1 && signalled()); }
    double over_ranks(double value) const { return ranks_.world() ? ranks_.world()->sum(value) : value; }
    void describe_timeline();
    void write_timeline();
    void finish(RunSummary& summary);

    const Config config_;
    Runtime& runtime_;
    const Ranks ranks_;
    RunFolder& folder_;
    TrainerOptions options_;  // the window of the trace cut to the run's steps
    TokenDataset train_data_, val_data_;
    BatchLoader loader_;
    ValidationLoader val_loader_;
    StepRunner runner_;
    const int64_t period_ = runner_.state().period;  // common period of the optimizer groups
    double ceiling_flops_per_s_ = 0;                 // these two of all ranks
    std::vector<double> flops_per_step_;             // index: stage
    TrainClock clock_;
    StepTimes step_times_;
    int64_t first_step_ = 0;
    bool ranks_stop_ = false, traced_ = false;
    std::exception_ptr unreadable_;     // exception of a shard of this rank; null: none
    std::optional<Progress> progress_;  // once the warm-up has counted a step's operations
    Timeline timeline_;
    std::unique_ptr<Prefetcher> prefetcher_;
    double waited_ms_ = 0;  // of prefetcher_, at the step before
    RunnerState run_state_;
    Checkpointer checkpointer_;
    RunSummary summary_;
    double train_ms_ = 0;           // at the end of the last collected step
    int64_t validations_from_ = 0;  // MeasuredTimes::validations_from
};

}  // namespace speedrun
