#include "train/memory_plan.h"

#include "train/step_runner.h"

namespace speedrun {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

RuntimeOptions runtime_options(const Config& config, bool dry) {
    return {.device = config.device,
            .precision = config.precision,
            .threads = static_cast<int>(config.threads),
            .products = config.cuda.products,
            .attention = config.cuda.attention,
            .dry = dry};
}

MemoryPlan plan_memory(const Config& config) {
    Runtime runtime(runtime_options(config, true));
    StepRunner runner(config, runtime);
    runner.warm_up();
    return {.table = runtime.device().memory().print(),
            .bytes = runtime.device().memory().total(),
            .flops_per_step = runner.flops_per_step(),
            .device = runtime.device().kind(),
            .real = runtime.real()};
}

int64_t largest_microbatch(Config config, int64_t bytes) {
    const int64_t sequence = config.batch.sequence_length;
    const int64_t rows_per_step = config.batch.tokens_per_step / sequence;
    for (int64_t rows = config.batch.microbatch_tokens / sequence - 1; rows > 0; --rows) {
        if (rows_per_step % rows != 0) continue;
        config.batch.microbatch_tokens = rows * sequence;
        if (plan_memory(config).bytes <= bytes) return config.batch.microbatch_tokens;
    }
    return 0;
}

void require_memory(const Config& config, const Device& device) {
    const int64_t available = device.available_bytes();
    if (available < 0) return;
    const MemoryPlan plan = plan_memory(config);
    if (plan.bytes <= available) return;
    const int64_t tokens = largest_microbatch(config, available);
    throw_usage("out of memory: the run needs {:.1f} MiB of {} memory, and {:.1f} MiB are free. {}\n{}",
                static_cast<double>(plan.bytes) / kMiB, device.kind(), static_cast<double>(available) / kMiB,
                tokens > 0
                    ? fmt::format("It fits with --set batch.microbatch_tokens={} (now {}).", tokens,
                                  config.batch.microbatch_tokens)
                    : std::string("No batch.microbatch_tokens fits: lower model.num_layers, model.model_dim "
                                  "or batch.sequence_length."),
                plan.table);
}

}  // namespace speedrun
