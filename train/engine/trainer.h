// The training loop of a run: load, forward, backward, step, log. All output uses RunFolder (files) and Progress
// (screen). All ranks run the same loop and take the same decisions; rank 0 prints.
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
#include "train/engine/batch_sources.h"
#include "train/engine/initial_weights.h"
#include "train/engine/runner_state.h"
#include "train/runlog/progress.h"
#include "train/runlog/run_folder.h"
#include "train/runlog/train_clock.h"
#include "train/sharding/ranks.h"
#include "train/trace/timeline.h"

namespace speedrun {

struct TrainerOptions {
    bool quiet = false;
    bool warm_up = true;                            // false only in the test that warm-up has no effect
    int64_t trace_first = -1, trace_last = -1;      // steps recorded in trace.json
    const std::atomic<int>* stop_signal = nullptr;  // nonzero: finish the step and end on all ranks
    // checkpoint to continue from; used only by the constructor
    const CheckpointReader* resume = nullptr;
    // values of config.model.init_from; used only by the constructor
    const InitialWeights* initial = nullptr;
    std::optional<RunOrigin> origin{};         // for summary.json and checkpoints; nullopt: random weights
    std::string data{};                        // identity of the shards for checkpoints, JSON; empty: omitted
    FileSystem* file_system = nullptr;         // for checkpoints; tests pass their own
    int64_t max_fetched = kMaxNumbersFetched;  // RankFile::max_fetched; tests lower it
    // age of the process in ms at the start of the run, for its start-up time; 0: run and process start together
    double began_ms = 0;
};

class Trainer {
  public:
    // Opens the data, builds the model, warms up and initializes. The folder must outlive the trainer; on other ranks
    // than 0 it writes nothing. Collective, as are run() and its errors.
    Trainer(const Config& config, Runtime& runtime, const Ranks& ranks, RunFolder& folder,
            const TrainerOptions& options);
    // After an error, streams may hold work, such as a copy into the checkpointer's memory.
    ~Trainer() { runtime_.drain(); }

    // Trains to the end of the schedule or a stop signal, validates, and returns the content of summary.json. Throws
    // JointError(diverged) after writing the summary. Throws JointError(data), after a checkpoint, if a rank's shards
    // can no longer be read.
    RunSummary run();

    StepRunner& runner() { return runner_; }
    // First write error during training; empty: none. Only rank 0 has errors of the run folder's own files.
    std::string problem() const;
    // Before run(): cuts the window of the trace to the run's steps. Returns a warning if none is left.
    std::string cut_trace_window();

  private:
    int64_t resume(const CheckpointReader* from);  // returns the first step to run
    void resume_time_to_target(const CheckpointInfo& info, const RunFolder::Kept& kept);
    void train();  // runs steps until the end of the schedule or a stop
    void collect();
    void pause_before(int64_t step);     // validates and saves, off the clock, if due
    void snapshot_after(int64_t steps);  // call after enqueuing the last of them
    void save_last();                    // after the loop
    void warn_of_unsaved_steps();
    // Steps after which the last checkpoint is saved: the end of the last whole period.
    int64_t last_saved() const {
        const int64_t total = config_.schedule.total_steps();
        return total - total % period_;
    }
    // True if no gradient is pending after `steps` steps. Checkpoints do not hold pending gradients.
    bool between_periods(int64_t steps) const { return steps % period_ == 0; }
    double flops_before(int64_t step) const;  // all ranks, steps before this one
    CheckpointInfo checkpoint_info() const;   // after the last collected step
    void report(const std::string& text, bool problem);
    void validate(int64_t step);  // off the clock
    void start_clock();
    void stop_clock();
    void trace(int64_t step);
    bool reaches_target(double loss) const {
        return config_.record.target_loss > 0 && loss <= config_.record.target_loss;
    }
    bool signalled() const { return options_.stop_signal && options_.stop_signal->load() != 0; }
    // True if all batches exist that can be used before all ranks agree to stop. A failure found later would leave
    // other ranks waiting in the middle of a step.
    bool have_batches(int64_t step);
    // Number of steps after `step` that may run if a rank asks to stop at `step`.
    int64_t steps_ahead() const { return period_ + 1; }
    void expect_readable();  // throws JointError(data) on all ranks if one has an unreadable shard
    // A single rank ends immediately. Several ranks must end at the same step, see collect().
    bool stopped() const { return ranks_stop_ || (ranks_.size() == 1 && signalled()); }
    double over_ranks(double value) const { return ranks_.world() ? ranks_.world()->sum(value) : value; }
    void describe_timeline();
    void write_timeline();
    void finish(RunSummary& summary);

    const Config config_;
    Runtime& runtime_;
    const Ranks ranks_;
    RunFolder& folder_;
    TrainerOptions options_;  // the trace window is cut to the run's steps
    TrainingData train_data_;
    TokenDataset val_data_;
    BatchLoader loader_;
    ValidationLoader val_loader_;
    StepRunner runner_;
    const int64_t period_ = runner_.state().period;  // common period of the optimizer groups
    double peak_flops_per_s_ = 0;                    // sum over ranks, FLOP/s
    std::vector<double> flops_per_step_;             // index: stage
    TrainClock clock_;
    StepTimes step_times_;
    int64_t first_step_ = 0;
    bool ranks_stop_ = false, traced_ = false;
    std::exception_ptr unreadable_;     // exception of a shard of this rank, or null
    std::optional<Progress> progress_;  // set after the warm-up has counted operations
    Timeline timeline_;
    std::unique_ptr<Prefetcher> prefetcher_;
    double waited_ms_ = 0;  // wait of prefetcher_ at the previous step
    RunnerState run_state_;
    Checkpointer checkpointer_;
    RunSummary summary_;
    double train_ms_ = 0;           // at the end of the last collected step
    int64_t validations_from_ = 0;  // MeasuredTimes::validations_from
};

}  // namespace speedrun
