#include "train/engine/step_bench.h"

#include <memory>
#include <optional>

#include "data/shard_patterns.h"
#include "train/engine/batch_sources.h"
#include "train/engine/step_loop.h"
#include "train/runlog/environment.h"

namespace speedrun {

namespace {

// Batches of the dataset, or synthetic ones if its shards do not exist. Damaged shards are an error.
class Batches {
  public:
    explicit Batches(const Config& config) {
        if (!found(config.data.train)) {
            source_ = std::make_unique<SyntheticBatches>(config);
            return;
        }
        data_.emplace(config);
        loader_.emplace(data_->sources(), loader_options(config));
        prefetcher_.emplace(*loader_, PrefetcherOptions{.rows_per_microbatch = rows_per_microbatch(config)});
        source_ = std::make_unique<PrefetchedBatches>(*prefetcher_);
    }
    BatchSource& source() { return *source_; }
    const char* name() const { return data_ ? "dataset" : "synthetic"; }

  private:
    static bool found(const std::vector<std::string>& patterns) {
        if (patterns.empty()) return false;
        try {
            return !expand_globs(patterns).empty();
        } catch (const Error& error) {
            if (error.code() != ExitCode::data) throw;
            return false;
        }
    }

    std::optional<TrainingData> data_;
    std::optional<BatchLoader> loader_;
    std::optional<Prefetcher> prefetcher_;
    std::unique_ptr<BatchSource> source_;
};

std::vector<TimedCall> timed_calls(const std::vector<MeteredOps::Call>& calls,
                                   const std::vector<int64_t>& step_ends, int64_t first_step) {
    std::vector<TimedCall> timed;
    int64_t step = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
        while (static_cast<int64_t>(i) >= step_ends[step]) ++step;
        const Event& origin = *calls.front().begin;
        timed.push_back({calls[i].cost, first_step + step, calls[i].begin->elapsed_ms_since(origin),
                         calls[i].end->elapsed_ms_since(origin)});
    }
    return timed;
}

}  // namespace

StepBench bench_steps(const Config& config, Runtime& runtime, const Ranks& ranks,
                      const StepBenchOptions& options) {
    if (ranks.size() > 1) throw_usage("bench: one rank is timed, not {}", ranks.size());
    StepBench result;
    const int64_t resident_before = current_rss_bytes();
    MeteredOps& meter = runtime.meter();
    Batches batches(config);
    result.data = batches.name();
    StepRunner runner(config, runtime, ranks);
    const PeakSizes sizes = options.peaks.product > 0 ? options.peaks : peak_sizes(runtime.device());
    const auto measure = [&] {
        measure_peaks(runtime.device(), runtime.ops(), runtime.compute(), runtime.compute_dtype(), sizes,
                      result.peaks);
    };
    runner.warm_up();
    result.work = runner.work_per_step();
    runner.state().initialize(static_cast<uint64_t>(config.seed));
    StepLoop loop(runner, batches.source());
    if (options.warmup > 0) loop.run(options.warmup);
    result.memory_bytes = runtime.device().memory().total();
    result.resident_bytes = peak_rss_bytes() - resident_before;
    measure();

    const int64_t period = runner.state().period;
    const auto whole_periods = [&](int64_t steps) { return (steps + period - 1) / period * period; };
    std::vector<double> plain;
    const int64_t half = whole_periods((options.steps + 1) / 2);
    add_periods(loop.run(1 + half), period, plain);

    // Captured graphs cannot contain the meter's events.
    if (runner.has_graphs())
        result.limits = "operations are timed call by call; the steps without events use CUDA graphs";
    runner.use_graphs(false);
    std::vector<int64_t> step_ends;
    meter.start();
    loop.run(1 + whole_periods(options.steps),
             [&](int64_t) { step_ends.push_back(static_cast<int64_t>(meter.calls().size())); });
    meter.stop();
    runner.use_graphs(true);
    add_periods(loop.run(1 + half), period, plain);
    runtime.synchronize();
    measure();

    result.plain_step_ms = mean_of_middle_half(plain);
    result.profile = profile_steps(timed_calls(meter.calls(), step_ends, 0), period, result.peaks);
    return result;
}

}  // namespace speedrun
