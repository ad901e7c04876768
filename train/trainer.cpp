#include "train/trainer.h"

#include <algorithm>
#include <string_view>

#include "data/dataset.h"
#include "train/checkpoint/hf_gpt2.h"
#include "train/distributed/joint_check.h"
#include "train/record/environment.h"

namespace speedrun {

namespace {

class PrefetchedBatches final : public BatchSource {
  public:
    explicit PrefetchedBatches(Prefetcher& prefetcher) : prefetcher_(prefetcher) {}
    const Batch& next() override { return prefetcher_.next(); }

  private:
    Prefetcher& prefetcher_;
};

TokenDataset open_dataset(const Config& config, const std::vector<std::string>& patterns, const char* key) {
    if (patterns.empty()) throw_usage("{} is empty: name the token shards", key);
    const std::vector<std::string> files = expand_globs(patterns);
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    if (info.vocab_size > config.model.vocab_size) {
        throw_usage("model.vocab_size {} is below the {} tokens of the dataset {} ({})",
                    config.model.vocab_size, info.vocab_size, info.name, files.front());
    }
    return TokenDataset(files, static_cast<int32_t>(config.model.vocab_size), info.separator);
}

BatchLoaderOptions loader_options(const Config& config) {
    return {.sequence_length = config.batch.sequence_length,
            .rows_per_step = config.batch.tokens_per_step / config.batch.sequence_length,
            .seed = static_cast<uint64_t>(config.seed),
            .shuffle = config.data.shuffle,
            .document_mask = config.data.document_mask};
}

}  // namespace

double measure_product_ceiling(Runtime& runtime) {
    const int64_t size = std::string_view(runtime.device().kind()) == "cuda" ? 8192 : 1024;
    const auto bytes = size * size * size_of(runtime.real());
    Buffer memory(runtime.device(), "ceiling", MemoryCategory::workspace, 3 * bytes);
    const auto matrix = [&](int64_t i) { return memory.tensor(runtime.real(), {size, size}, i * bytes); };
    const auto begin = runtime.device().create_event(), end = runtime.device().create_event();
    // Random numbers: products of zeros run faster than real ones.
    Buffer noise(runtime.device(), "ceiling", MemoryCategory::workspace, size * size * size_of(DType::f32));
    const Tensor values = noise.tensor(DType::f32, {size * size});
    runtime.ops().random_normal(values, 1, 1, 0, 1.0f, runtime.compute());
    for (int64_t i : {1, 2})
        runtime.ops().cast(memory.tensor(runtime.real(), {size * size}, i * bytes), values,
                           runtime.compute());
    double best_ms = 1e30;
    for (int round = 0; round < 4; ++round) {
        runtime.compute().record(*begin);
        runtime.ops().matmul(matrix(0), matrix(1), matrix(2), {}, {.transpose_b = true}, runtime.compute());
        runtime.compute().record(*end);
        runtime.compute().synchronize();
        best_ms = std::min(best_ms, end->elapsed_ms_since(*begin));
    }
    return 2.0 * static_cast<double>(size * size * size) / (best_ms * 1e-3);
}

Trainer::Trainer(const Config& config, Runtime& runtime, const Ranks& ranks, RunFolder& folder,
                 const TrainerOptions& options)
    : config_(config),
      runtime_(runtime),
      ranks_(ranks),
      folder_(folder),
      options_(options),
      train_data_(open_dataset(config, config.data.train, "data.train")),
      val_data_(open_dataset(config, config.data.val, "data.val")),
      loader_(train_data_, loader_options(config)),
      val_loader_(val_data_,
                  {config.batch.sequence_length, config.data.val_tokens, config.data.document_mask}),
      runner_(config, runtime, ranks),
      ceiling_flops_per_s_(over_ranks(options.warm_up ? measure_product_ceiling(runtime) : 0)) {
    if (options.warm_up) runner_.warm_up();
    flops_per_step_ = over_ranks(static_cast<double>(runner_.flops_per_step()));
    progress_.emplace(config.schedule.steps, options.quiet || !ranks.first(), ranks.size(), flops_per_step_,
                      ceiling_flops_per_s_);
    runner_.initialize(static_cast<uint64_t>(config.seed));
    if (const std::string& from = config.model.init_from; !from.empty())
        runner_.assign(read_hf_weights(from, runner_.model().table(), config.model));
    prefetcher_ = std::make_unique<Prefetcher>(
        loader_, PrefetcherOptions{
                     .rows_per_microbatch = config.batch.microbatch_tokens / config.batch.sequence_length,
                     .microbatches_per_step = config.microbatches_per_step(ranks.num_data_ranks()),
                     .rank = ranks.data_rank(),
                     .num_ranks = ranks.num_data_ranks()});
    summary_.startup_ms = process_age_ms();
}

RunSummary Trainer::run() {
    PrefetchedBatches batches(*prefetcher_);
    start_clock();
    try {
        for (int64_t step = 0; step < config_.schedule.steps && !stopped(); ++step) {
            if (step > 0 && config_.eval.every > 0 && step % config_.eval.every == 0) {
                stop_clock();
                validate(step);
                start_clock();
            }
            trace(step);
            runner_.enqueue(step, batches, signalled());
            if (runner_.uncollected() == 2) collect();  // while this step runs, log the one before
        }
        stop_clock();
        trace(summary_.steps);
        validate(summary_.steps);
        summary_.status = stopped() ? "stopped" : "done";
    } catch (const Error& error) {
        if (error.code() != ExitCode::diverged) throw;
        summary_.status = "diverged";
        summary_.message = error.what();
        clock_.stop();
        finish(summary_);
        // Loss and norm are those of all ranks, so all of them are here.
        throw JointError(error.code(), error.what());
    }
    finish(summary_);
    return summary_;
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
    metrics.optimizer_ms = result.optimizer_ms - result.comm_exposed_ms;
    metrics.data_ms = prefetcher_->wait_ms() - waited_ms_;
    metrics.tokens = (result.step + 1) * config_.batch.tokens_per_step;
    metrics.tokens_per_s = static_cast<double>(config_.batch.tokens_per_step) / (result.step_ms * 1e-3);
    waited_ms_ = prefetcher_->wait_ms();

    step_times_.add(result.step, result.step_ms);
    summary_.steps = result.step + 1;
    summary_.tokens = metrics.tokens;
    summary_.train_loss = result.loss;
    summary_.data_ms += metrics.data_ms;
    summary_.optimizer_ms += metrics.optimizer_ms;
    summary_.comm_exposed_ms += metrics.comm_exposed_ms;
    folder_.write_step(metrics);
    progress_->step(metrics);
}

void Trainer::start_clock() {
    runner_.start_clock();
    clock_.start();
}

void Trainer::stop_clock() {
    while (runner_.uncollected() > 0) collect();
    runtime_.synchronize();
    clock_.stop();
}

void Trainer::validate(int64_t step) {
    const double loss = runner_.validate(val_loader_);
    summary_.val_loss = loss;
    if (config_.record.target_loss > 0 && loss <= config_.record.target_loss && !summary_.time_to_target_ms) {
        summary_.time_to_target_ms = clock_.finished_ms();
    }
    folder_.write_validation(step, loss, clock_.finished_ms());
    folder_.log(fmt::format("step {}: validation loss {:.6f} after {:.3f} s of training", step, loss,
                            clock_.finished_ms() * 1e-3));
    progress_->validation(step, loss, clock_.finished_ms());
}

// The timeline is switched on and off between steps, while nothing is in flight.
void Trainer::trace(int64_t step) {
    if (step == options_.trace_first || (step == options_.trace_last + 1 && options_.trace_first >= 0)) {
        runtime_.synchronize();
        const bool traced = step == options_.trace_first;
        runtime_.device().set_trace(traced ? &timeline_ : nullptr);
        runner_.use_graphs(!traced);
    }
}

// Beside each other in the run's folder: all hosts of a run see the same files.
std::string Trainer::trace_path() const {
    const std::string name = ranks_.first() ? "trace.json" : fmt::format("trace_rank{}.json", ranks_.rank());
    return folder_.path() + "/" + name;
}

void Trainer::finish(RunSummary& s) {
    runtime_.synchronize();
    runtime_.device().set_trace(nullptr);
    progress_->finish();
    s.ranks = ranks_.size();
    s.mesh = ranks_.mesh.describe();
    s.strategy = row_of(ranks_.plan.strategy).name;
    s.parameters = runner_.model().table().numel();
    s.train_ms = clock_.finished_ms();
    if (config_.record.target_loss > 0) s.target_loss = config_.record.target_loss;
    if (!step_times_.empty()) {
        s.step_p50_ms = step_times_.percentile(0.5);
        s.step_p99_ms = step_times_.percentile(0.99);
        s.step_max_ms = step_times_.max();
        s.step_max_at = step_times_.max_step();
        if (s.train_ms > 0) {
            s.tokens_per_s = static_cast<double>(s.tokens) / (s.train_ms * 1e-3);
            s.flops_per_s = flops_per_step_ * static_cast<double>(s.steps) / (s.train_ms * 1e-3);
        }
    }
    s.ceiling_flops_per_s = ceiling_flops_per_s_;
    s.memory_bytes = runtime_.device().memory().total();
    s.peak_rss_bytes = peak_rss_bytes();
    if (timeline_.size() > 0) timeline_.write(trace_path());
    folder_.write_summary(s);
}

}  // namespace speedrun
