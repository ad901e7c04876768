#include <cstdio>

#include "data/dataset.h"
#include "data/shard.h"
#include "train/commands/commands.h"
#include "train/config/config_json.h"
#include "train/record/environment.h"
#include "train/step_runner.h"

namespace speedrun {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

int64_t count_tokens(const std::vector<std::string>& patterns) {
    int64_t tokens = 0;
    for (const std::string& file : expand_globs(patterns))
        tokens += static_cast<int64_t>(Shard(file).tokens().size());
    return tokens;
}

void print_parameters(const ParameterTable& table, const OptimizersConfig& optimizers) {
    const std::vector<int> groups = assign_groups(table, optimizers);
    std::printf("\nparameters: %d tensors, %lld values\n", table.size(),
                static_cast<long long>(table.numel()));
    for (size_t g = 0; g < optimizers.groups.size(); ++g) {
        int64_t tensors = 0, values = 0;
        for (const Parameter& p : table.all()) {
            if (groups[p.id] != static_cast<int>(g)) continue;
            ++tensors;
            values += p.numel();
        }
        std::printf("  group %zu  %-6s lr %-8g %4lld tensors %12lld values\n", g,
                    optimizers.groups[g].type.c_str(), optimizers.groups[g].lr,
                    static_cast<long long>(tensors), static_cast<long long>(values));
    }
}

void print_batch(const Config& config) {
    const BatchConfig& b = config.batch;
    std::printf(
        "\nbatch: %lld tokens per step = %lld microbatches x %lld sequences x %lld tokens; %lld steps = %lld "
        "tokens\n",
        static_cast<long long>(b.tokens_per_step), static_cast<long long>(config.microbatches_per_step()),
        static_cast<long long>(b.microbatch_tokens / b.sequence_length),
        static_cast<long long>(b.sequence_length), static_cast<long long>(config.schedule.steps),
        static_cast<long long>(b.tokens_per_step * config.schedule.steps));
    try {
        const int64_t train = count_tokens(config.data.train), val = count_tokens(config.data.val);
        std::printf(
            "data: %lld training tokens (%.2f epochs), %lld validation tokens\n",
            static_cast<long long>(train),
            static_cast<double>(b.tokens_per_step * config.schedule.steps) / static_cast<double>(train),
            static_cast<long long>(val));
    } catch (const Error& error) {
        std::printf("data: not there yet (%s)\n", error.what());
    }
}

}  // namespace

int run_plan(const PlanOptions& options) {
    if (options.options_help) {
        std::printf("Every option of a config, with its default:\n%s", describe_options().c_str());
        return 0;
    }
    if (options.config.empty()) throw_usage("plan: name a config, or ask for --options");
    const Config config = read_config(options.config, options.settings);
    std::printf("%s", config_to_json(config).c_str());

    // The whole machine on a device that allocates and runs nothing: shapes, memory and operations are the
    // run's own.
    Runtime runtime({.device = config.device,
                     .precision = config.precision,
                     .threads = static_cast<int>(config.threads),
                     .dry = true});
    StepRunner runner(config, runtime);
    runner.warm_up();
    print_parameters(runner.model().table(), config.optimizers);
    print_batch(config);
    const double flops = static_cast<double>(runner.flops_per_step());
    std::printf("work: %.3f GFLOP per step, %.3f MFLOP per token\n", flops * 1e-9,
                flops * 1e-6 / static_cast<double>(config.batch.tokens_per_step));
    std::printf("communication: one rank, none\n");

    const double process = static_cast<double>(current_rss_bytes()),
                 planned = static_cast<double>(runtime.device().memory().total());
    const double available = static_cast<double>(read_environment().available_memory_bytes);
    std::printf("\nmemory per rank (%s, %s)\n%s", runtime.device().kind(),
                std::string(name_of(runtime.real())).c_str(), runtime.device().memory().print().c_str());
    const bool fits = planned + process <= available;
    std::printf("  program itself about %.1f MiB; of %.1f MiB available: %s\n", process / kMiB,
                available / kMiB,
                fits ? "fits" : "DOES NOT FIT, lower batch.microbatch_tokens or the model's size");
    return fits ? 0 : static_cast<int>(ExitCode::usage);
}

}  // namespace speedrun
