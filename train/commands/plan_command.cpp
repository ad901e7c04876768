#include <cstdio>

#include "data/dataset.h"
#include "data/shard.h"
#include "train/commands/commands.h"
#include "train/config/config_json.h"
#include "train/memory_plan.h"
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

// Does it fit? Says so, and what would; 2 if not.
int print_fit(const Config& config, const MemoryPlan& plan) {
    Runtime here(runtime_options(config, true));
    const int64_t available = here.device().available_bytes();
    if (available < 0) {
        std::printf("  no such device here to compare with\n");
        return 0;
    }
    // On the CPU the program itself lives in the same memory.
    const int64_t process = plan.device == "cpu" ? current_rss_bytes() : 0;
    const bool fits = plan.bytes + process <= available;
    std::printf("  program itself about %.1f MiB; of %.1f MiB available: ",
                static_cast<double>(process) / kMiB, static_cast<double>(available) / kMiB);
    if (fits) {
        std::printf("fits\n");
        return 0;
    }
    const int64_t tokens = largest_microbatch(config, available - process);
    std::printf("DOES NOT FIT, %s\n",
                tokens > 0 ? fmt::format("--set batch.microbatch_tokens={} would", tokens).c_str()
                           : "lower batch.sequence_length or the model's size");
    return static_cast<int>(ExitCode::usage);
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

    const MemoryPlan plan = plan_memory(config);
    print_parameters(ParameterTable(config.model, config.batch.sequence_length), config.optimizers);
    print_batch(config);
    const auto flops = static_cast<double>(plan.flops_per_step);
    std::printf("work: %.3f GFLOP per step, %.3f MFLOP per token\n", flops * 1e-9,
                flops * 1e-6 / static_cast<double>(config.batch.tokens_per_step));
    std::printf("communication: one rank, none\n");
    std::printf("\nmemory per rank (%s, %s)\n%s", plan.device.c_str(),
                std::string(name_of(plan.real)).c_str(), plan.table.c_str());
    return print_fit(config, plan);
}

}  // namespace speedrun
