#include "train/engine/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/ops/peaks.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/run_position.h"
#include "train/comm/joint_check.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/finite_check.h"
#include "train/runlog/build_info.h"
#include "train/runlog/environment.h"
#include "train/runlog/sign_of_life.h"

namespace speedrun {

namespace {

// Measures the FLOP/s of a large matmul in the compute dtype, the peak for MFU. A run starts with it, so on a CPU the
// matmul is smaller than in `bench`. A few cores with vector units reach their peak at size 512, in 1/8 of the time of
// 1024. AMX and many cores need 1024. Under an emulator such sizes take minutes, so 256 must suffice; it takes about 1
// ms on a real CPU.
double measure_matmul_peak(Runtime& runtime) {
    const auto rate = [&](int64_t size, int rounds) {
        return LargeMatmul(runtime.device(), runtime.ops(), runtime.compute(), runtime.compute_dtype(), size)
            .rate(rounds);
    };
    if (runtime.threads() == 0) return rate(8192, 4);
    constexpr double kEmulated = 1e8, kFewCores = 2e11;  // FLOP/s; a core with AVX2 has 3e10 to 1e11
    const double small = rate(256, 2);
    if (small < kEmulated) return small;
    return small < kFewCores ? rate(512, 8) : rate(1024, 4);
}

}  // namespace

Trainer::Trainer(const Config& config, Runtime& runtime, const Ranks& ranks, RunFolder& folder,
                 const TrainerOptions& options)
    : config_(config),
      runtime_(runtime),
      ranks_(ranks),
      folder_(folder),
      options_(options),
      train_data_(config),
      val_data_(open_dataset(config, config.data.val, "data.val")),
      loader_(train_data_.sources(), loader_options(config, ranks)),
      val_loader_(val_data_, validation_options(config, ranks)),
      runner_(config, runtime, ranks),
      peak_flops_per_s_(over_ranks(options.warm_up ? measure_matmul_peak(runtime) : 0)),
      run_state_(runner_),
      checkpointer_(config, ranks, runtime, run_state_, folder.path(),
                    [this](const std::string& text, bool problem) { report(text, problem); },
                    {.system = options.file_system, .max_fetched = options.max_fetched}) {
    folder.log(loader_.describe());
    if (options.warm_up) runner_.warm_up();
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage)
        flops_per_step_.push_back(over_ranks(static_cast<double>(runner_.work_per_step(stage).flops)));
    progress_.emplace(ProgressOptions{.steps = config.schedule.total_steps(),
                                      .tokens = config.tokens_before(config.schedule.total_steps()),
                                      .quiet = options.quiet || !ranks.first(),
                                      .num_ranks = ranks.size(),
                                      .ceiling_flops_per_s = peak_flops_per_s_});
    runner_.state().initialize(static_cast<uint64_t>(config.seed));
    if (!config.model.init_from.empty() && !options.resume && !options.initial)
        throw_internal("model.init_from {} was not read", config.model.init_from);
    if (options.initial) runner_.state().assign(options.initial->values);
    summary_.origin = options.origin;
    first_step_ = resume(options.resume);
    int64_t microbatches = 0;  // largest number in a step of this rank
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage)
        microbatches =
            std::max(microbatches, config.in_stage(stage).microbatches_per_step(ranks.num_data_ranks()));
    prefetcher_ = std::make_unique<Prefetcher>(
        loader_, PrefetcherOptions{.rows_per_microbatch = rows_per_microbatch(config),
                                   .rank = ranks.data_rank(),
                                   .num_ranks = ranks.num_data_ranks(),
                                   .start_step = first_step_,
                                   .depth = (steps_ahead() + 1) * microbatches});
    have_batches(first_step_);
    expect_readable();
    summary_.startup_ms = process_age_ms() - options.began_ms;
}

int64_t Trainer::resume(const CheckpointReader* from) {
    const int64_t step = from ? from->info().step : 0;
    if (from) load_checkpoint(*from, runtime_, run_state_);
    // Resume can no longer fail: drop the records of later steps.
    const RunFolder::Kept kept = folder_.keep_steps_before(step);
    for (const double ms : kept.step_ms)
        step_times_.add({.step = static_cast<int64_t>(step_times_.size()), .ms = ms});
    if (!from) return step;
    const CheckpointInfo& info = from->info();
    checkpointer_.continue_from(step);
    clock_.continue_from(info.measured.train_ms);
    train_ms_ = info.measured.train_ms;
    summary_.steps = step;
    summary_.tokens = info.tokens;
    summary_.train_loss = info.train_loss;
    summary_.data_ms = info.measured.data_ms;
    summary_.optimizer_ms = info.measured.optimizer_ms;
    summary_.comm_exposed_ms = info.measured.comm_exposed_ms;
    summary_.comm_ms = info.measured.comm_ms;
    resume_time_to_target(info, kept);
    return step;
}

// The target or the validation may differ from the ones of the checkpoint's time_to_target_ms.
void Trainer::resume_time_to_target(const CheckpointInfo& info, const RunFolder::Kept& kept) {
    const Config there =
        parse_config(info.config, options_.resume->folder() + "/checkpoint.json: config", {});
    const double target = config_.record.target_loss;
    const bool alike = same_validation(there, config_);
    validations_from_ = info.measured.validations_from;
    if (alike && there.record.target_loss == target) {
        summary_.time_to_target_ms = info.measured.time_to_target_ms;
        return;
    }
    if (alike && kept.any) {
        for (const Validation& made : kept.validations)
            if (made.step >= validations_from_ && !summary_.time_to_target_ms && reaches_target(made.loss))
                summary_.time_to_target_ms = made.train_ms;
        return;
    }
    validations_from_ = info.step;
    if (target <= 0) return;
    report(fmt::format("validations before step {} do not count for the time to target: {}", info.step,
                       alike ? "they are in another run's folder and this target is not theirs"
                             : "they were of other data, tokens or windows"),
           true);
}

double Trainer::flops_before(int64_t step) const {
    const ScheduleConfig& schedule = config_.schedule;
    double flops = 0;
    for (int64_t stage = 0; stage <= schedule.stage_of(step); ++stage) {
        const int64_t end = stage < schedule.stage_of(step) ? schedule.end_step(stage) : step;
        flops += flops_per_step_[static_cast<size_t>(stage)] *
                 static_cast<double>(end - schedule.first_step(stage));
    }
    return flops;
}

CheckpointInfo Trainer::checkpoint_info() const {
    CheckpointInfo info;
    set_position(info, config_, summary_.steps);
    info.train_loss = summary_.train_loss.value_or(0);
    info.precision = std::string(name_of(runtime_.compute_dtype()));
    info.ranks = ranks_.size();
    info.mesh = ranks_.mesh().describe();
    info.strategy = word_of(ranks_.sharing().strategy);
    info.written_by = build_info().git_sha;
    info.config = config_to_json(config_);
    info.data = options_.data;
    if (options_.origin) info.origin = run_origin_to_json(*options_.origin);
    info.measured = {.train_ms = train_ms_,
                     .data_ms = summary_.data_ms,
                     .optimizer_ms = summary_.optimizer_ms,
                     .comm_exposed_ms = summary_.comm_exposed_ms,
                     .comm_ms = summary_.comm_ms,
                     .time_to_target_ms = summary_.time_to_target_ms,
                     .validations_from = validations_from_};
    return info;
}

void Trainer::report(const std::string& text, bool problem) {
    folder_.log((problem ? "warning: " : "") + text);
    if (!problem || !ranks_.first()) return;
    if (progress_) progress_->finish();
    std::fprintf(stderr, "warning: %s\n", text.c_str());
}

std::string Trainer::problem() const {
    return checkpointer_.problem().empty() ? folder_.problem() : checkpointer_.problem();
}

RunSummary Trainer::run() {
    warn_of_unsaved_steps();
    try {
        train();
        expect_finite_parameters(runner_.state(), summary_.steps);  // no later step would detect it
        summary_.status = stopped() ? "stopped" : "done";
        save_last();
        expect_readable();
        validate(summary_.steps);
        if (unreadable_ && between_periods(summary_.steps)) checkpointer_.save(checkpoint_info());
        expect_readable();
    } catch (const Error& error) {
        const bool diverged = error.code() == ExitCode::diverged;
        if (!diverged && !dynamic_cast<const JointError*>(&error)) throw;
        summary_.status = diverged ? "diverged" : "stopped";
        summary_.message = error.what();
        if (diverged) clock_.stop();  // otherwise it is stopped already
        checkpointer_.finish();
        finish(summary_);
        // All ranks reach this throw: loss and norm are global, and a JointError is thrown on all ranks.
        throw JointError(error.code(), error.what());
    }
    checkpointer_.finish();
    finish(summary_);
    return summary_;
}

void Trainer::train() {
    PrefetchedBatches batches(*prefetcher_);
    start_clock();
    for (int64_t step = first_step_;
         step < config_.schedule.total_steps() && !(stopped() && between_periods(step)); ++step) {
        pause_before(step);
        trace(step);
        const bool readable = have_batches(step);
        runner_.enqueue(step, batches, signalled() || !readable);
        snapshot_after(step + 1);
        if (runner_.uncollected() == 2) collect();  // logs the previous step while this one runs
    }
    stop_clock();
    if (summary_.steps > options_.trace_first) trace(summary_.steps);
}

void Trainer::pause_before(int64_t step) {
    const bool validates = step > 0 && config_.eval.every > 0 && step % config_.eval.every == 0,
               saves = step > 0 && step == last_saved() && config_.checkpoint.last;
    if (!validates && !saves) return;
    stop_clock();
    if (saves) {
        expect_finite_parameters(runner_.state(), summary_.steps);
        checkpointer_.save(checkpoint_info());
    }
    if (validates) validate(step);
    start_clock();
}

// A snapshot's memory is free only after its step's result is collected. With a snapshot after every step, the previous
// step is collected first, while the device runs the enqueued one.
void Trainer::snapshot_after(int64_t steps) {
    if (!checkpointer_.due(steps)) return;
    if (checkpointer_.awaits_result()) collect();
    checkpointer_.snapshot(steps);
}

void Trainer::save_last() {
    if (!stopped() && !config_.checkpoint.last) return;
    if (between_periods(summary_.steps)) return checkpointer_.save(checkpoint_info());
    if (config_.checkpoint.last) return;  // saved by pause_before(), or warned of
    report(fmt::format("no checkpoint of step {}: gradients wait for the next step of an optimizer group",
                       summary_.steps),
           true);
}

void Trainer::warn_of_unsaved_steps() {
    const int64_t total = config_.schedule.total_steps(), period = period_;
    if (total % period == 0 || !config_.checkpoint.last) return;
    report(fmt::format(
               "schedule.steps {} is not a multiple of {}, the period of the optimizer groups (every): the "
               "steps after {} do not train the groups that wait, and {}",
               total, period, last_saved(),
               last_saved() > 0 ? fmt::format("the last checkpoint is of step {}", last_saved())
                                : std::string("no checkpoint is saved")),
           true);
}

bool Trainer::have_batches(int64_t step) {
    const int64_t last = std::min(step + steps_ahead(), config_.schedule.total_steps() - 1);
    if (prefetcher_->made_through(last)) return true;
    unreadable_ = prefetcher_->error();
    return false;
}

void Trainer::expect_readable() {
    check_together(ranks_.world(), [this] {
        if (unreadable_) std::rethrow_exception(unreadable_);
    });
}

void Trainer::collect() {
    const StepResult result = runner_.collect();
    ranks_stop_ = ranks_stop_ || result.stop;
    StepMetrics metrics;
    metrics.step = result.step;
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = config_.optimizers.groups.front().lr * result.lr_factor;
    metrics.step_ms = result.step_ms;
    metrics.train_ms = clock_.finished_ms() + result.clock_ms;
    metrics.comm_exposed_ms = result.comm_exposed_ms;
    metrics.comm_ms = result.comm_ms;
    for (size_t kind = 0; kind < result.communication.size(); ++kind) {
        const CollectiveCount& count = result.communication[kind];
        if (count.bytes_sent > 0) metrics.bytes[name_of(static_cast<Collective>(kind))] = count.bytes_sent;
    }
    metrics.optimizer_ms = result.optimizer_ms;
    metrics.data_ms = prefetcher_->wait_ms() - waited_ms_;
    metrics.checkpoint_stall_ms = result.copy_stall_ms + checkpointer_.take_wait_ms();
    metrics.tokens = config_.tokens_before(result.step + 1);
    const int64_t tokens = metrics.tokens - config_.tokens_before(result.step);
    metrics.tokens_per_s = static_cast<double>(tokens) / (result.step_ms * 1e-3);
    waited_ms_ = prefetcher_->wait_ms();

    step_times_.add({.step = result.step, .ms = result.step_ms});
    summary_.add(metrics);
    summary_.steps = result.step + 1;
    summary_.train_loss = result.loss;
    train_ms_ = metrics.train_ms;
    folder_.write_step(metrics);
    progress_->step(metrics, flops_before(result.step + 1));
    if (checkpointer_.collected(summary_.steps)) checkpointer_.write_snapshot(checkpoint_info());
}

// The host's clock starts first, so that host delays between the two starts are counted and no step ends after its
// segment.
void Trainer::start_clock() {
    runtime_.synchronize();
    clock_.start();
    runner_.start_clock();
}

void Trainer::stop_clock() {
    while (runner_.uncollected() > 0) collect();
    runtime_.synchronize();
    clock_.stop();
}

void Trainer::validate(int64_t step) {
    SignOfLife sign(folder_.path());
    double loss = 0;
    try {
        loss = runner_.validate(val_loader_, [&] {
            if (ranks_.first()) sign.show();
        });
    } catch (const JointError&) {  // a shard failed: the run ends after a checkpoint
        unreadable_ = std::current_exception();
        ranks_stop_ = true;
        return;
    }
    const Validation made{.step = step, .loss = loss, .train_ms = clock_.finished_ms()};
    summary_.val_loss = made.loss;
    summary_.target_reached = reaches_target(made.loss);
    if (summary_.target_reached && !summary_.time_to_target_ms) summary_.time_to_target_ms = made.train_ms;
    folder_.write_validation(made);
    folder_.log(fmt::format("step {}: validation loss {:.6f} after {:.3f} s of training", step, made.loss,
                            made.train_ms * 1e-3));
    progress_->validation(made);
    if (std::isfinite(made.loss)) return;
    expect_finite_parameters(runner_.state(), step);
    throw Error(
        ExitCode::diverged,
        fmt::format("diverged: the validation loss after {} steps is {}, of finite parameters. Lower the "
                    "learning rates or set optimizers.clip.",
                    step, made.loss));
}

void Trainer::finish(RunSummary& s) {
    runtime_.synchronize();
    runtime_.device().set_trace(nullptr);
    progress_->finish();
    s.ranks = ranks_.size();
    s.mesh = ranks_.mesh().describe();
    s.strategy = word_of(ranks_.sharing().strategy);
    const EpochCounts epoch = loader_.counts(0);
    s.epoch_tokens_seen = epoch.tokens_seen;
    s.epoch_tokens_dropped = epoch.tokens_dropped;
    s.sources = loader_.uses(s.steps);
    const std::vector<SourcePatterns> sources = train_sources(config_);
    for (size_t i = 0; i < s.sources.size(); ++i)
        s.sources[i].files = fmt::format("{}", fmt::join(sources[i].patterns, ","));
    s.parameters = runner_.state().table().whole_numel();
    s.train_ms = clock_.finished_ms();
    if (config_.record.target_loss > 0) s.target_loss = config_.record.target_loss;
    s.step_ms = {.p50 = step_times_.percentile(0.5),
                 .p99 = step_times_.percentile(0.99),
                 .max = step_times_.max(),
                 .max_at_step = step_times_.max_step()};
    s.ungraphed_steps = runner_.ungraphed_steps();
    if (!step_times_.empty() && s.train_ms > 0) {
        s.tokens_per_s = static_cast<double>(s.tokens) / (s.train_ms * 1e-3);
        s.flops_per_s = flops_before(s.steps) / (s.train_ms * 1e-3);
    }
    s.ceiling_flops_per_s = peak_flops_per_s_;
    s.memory_bytes = runtime_.device().memory().total();
    s.peak_rss_bytes = peak_rss_bytes();
    s.wall_s = (process_age_ms() - options_.began_ms) * 1e-3;
    folder_.write_summary(s);
    write_timeline();
}

}  // namespace speedrun
