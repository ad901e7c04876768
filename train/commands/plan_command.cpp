#include <cstdio>
#include <filesystem>

#include "data/dataset.h"
#include "data/durable_file.h"
#include "data/shard.h"
#include "data/shard_patterns.h"
#include "kernels/device/host_limits.h"
#include "train/comm/joint_check.h"
#include "train/comm/world.h"
#include "train/commands/commands.h"
#include "train/commands/plan_communication.h"
#include "train/commands/plan_gpu.h"
#include "train/commands/plan_graph.h"
#include "train/commands/plan_parameters.h"
#include "train/commands/plan_search.h"
#include "train/commands/plan_timeline.h"
#include "train/config/cannot_learn.h"
#include "train/config/config_help.h"
#include "train/config/config_json.h"
#include "train/config/config_schema.h"
#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/model/build_model.h"
#include "train/optim/groups.h"
#include "train/runlog/metrics.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

int64_t count_tokens(const std::vector<std::string>& patterns) {
    int64_t tokens = 0;
    for (const std::string& file : expand_globs(patterns)) tokens += Shard(file).size();
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
        std::printf("  group %zu  %-6s lr %-8g %4lld tensors %12lld values%s\n", g,
                    word_of(optimizers.groups[g].type), optimizers.groups[g].lr,
                    static_cast<long long>(tensors), static_cast<long long>(values),
                    optimizers.groups[g].frozen() ? ", frozen" : "");
    }
}

// "stage 1 of 0-3, steps 424 to 847: learning rates x 1.52, windows short 384, long 896"
std::string stage_text(const Config& config, int64_t stage) {
    const ScheduleConfig& schedule = config.schedule;
    const auto entry = [](const auto& e) {
        return e.is_number() ? fmt::format("{:g}", e.from) : fmt::format("{:g} to {:g}", e.from, e.to);
    };
    std::string text = fmt::format("stage {} of 0-{}, steps {} to {}: learning rates x {}", stage,
                                   schedule.num_stages() - 1, schedule.first_step(stage) + 1,
                                   schedule.end_step(stage), entry(schedule.lr_factor.in(stage)));
    const auto listed = [&](const std::string& name, const Scheduled<int64_t>& tokens) {
        if (tokens.is_number()) return;
        const int64_t here = tokens.in(stage).from;
        text += fmt::format(", {} {}", name, here == 0 ? std::string("all") : std::to_string(here));
    };
    for (const auto& [name, keys] : config.model.parts.windows) listed("window " + name, keys);
    listed("tokens of a document", config.data.max_document_tokens);
    for (size_t i = 0; i < config.optimizers.groups.size(); ++i) {
        const Scheduled<double>& momentum = config.optimizers.groups[i].muon.momentum;
        if (!momentum.is_number())
            text += fmt::format(", momentum of group {} {}", i, entry(momentum.in(stage)));
    }
    return text + "\n";
}

void print_work(const StepWork& work, const Ranks& ranks, const BatchConfig& batch) {
    const auto of_all_ranks = [&](int64_t flops) {
        return static_cast<double>(flops) * static_cast<double>(ranks.mesh().world_size());
    };
    const double flops = of_all_ranks(work.flops);
    std::printf("work: %.3f GFLOP per step, %.3f MFLOP per token\n", flops * 1e-9,
                flops * 1e-6 / static_cast<double>(batch.tokens_per_step));
    if (work.recomputed_flops == 0) return;
    const double again = of_all_ranks(work.recomputed_flops);
    std::printf("      and %.3f GFLOP per step (%.1f%%) of forward again, which MFU does not count\n",
                again * 1e-9, 100 * again / flops);
}

void print_batch(const Config& config, const Ranks& ranks, const std::vector<StepWork>& work) {
    const int data_ranks = ranks.num_data_ranks();
    const ContextSlice part = ranks.part();
    const int tensor = ranks.tensor().size;
    const std::string shared = (data_ranks > 1 ? fmt::format("{} ranks x ", data_ranks) : "") +
                               (part.size > 1 ? fmt::format("(rows shared by {} ranks) x ", part.size) : "") +
                               (tensor > 1 ? fmt::format("(matrices shared by {} ranks) x ", tensor) : "");
    const ScheduleConfig& schedule = config.schedule;
    std::printf("\n");
    for (int64_t i = 0; i < schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        const BatchConfig& b = stage.batch;
        const int64_t steps = schedule.end_step(i) - schedule.first_step(i);
        if (!schedule.stages.empty()) std::printf("%s", stage_text(config, i).c_str());
        std::printf(
            "batch: %lld tokens per step = %s%lld microbatches x %lld sequences x %lld tokens; %lld steps = %lld "
            "tokens\n",
            static_cast<long long>(b.tokens_per_step), shared.c_str(),
            static_cast<long long>(stage.microbatches_per_step(data_ranks)),
            static_cast<long long>(b.microbatch_tokens / b.sequence_length),
            static_cast<long long>(b.sequence_length), static_cast<long long>(steps),
            static_cast<long long>(b.tokens_per_step * steps));
        print_work(work[static_cast<size_t>(i)], ranks, b);
    }
    const int64_t tokens = config.tokens_before(schedule.total_steps());
    try {
        const int64_t train = count_tokens(config.data.train), val = count_tokens(config.data.val);
        std::printf("data: %lld training tokens (%.2f epochs), %lld validation tokens\n",
                    static_cast<long long>(train), static_cast<double>(tokens) / static_cast<double>(train),
                    static_cast<long long>(val));
    } catch (const Error& error) {
        std::printf("data: not there yet (%s)\n", error.what());
        return;
    }
    read_prefixes(config);  // errors are reported here, before the run
    if (config.data.rows == RowKind::stream && config.data.sources.size() < 2) return;
    const TrainingData data(config);
    const BatchLoader loader(data.sources(), loader_options(config));
    const std::vector<SourcePatterns> sources = train_sources(config);
    const std::vector<SourceUse> uses = loader.uses(schedule.total_steps());
    for (size_t i = 0; i < uses.size(); ++i)
        std::printf("  source %zu, %.4g%% of the rows: %lld tokens, the run draws %lld (%.2f epochs): %s\n",
                    i, 100 * uses[i].share, static_cast<long long>(data.sources()[i].dataset->num_tokens()),
                    static_cast<long long>(uses[i].tokens), uses[i].epochs,
                    fmt::format("{}", fmt::join(sources[i].patterns, ",")).c_str());
    if (config.data.rows == RowKind::documents) std::printf("%s\n", loader.describe().c_str());
}

// Prints whether the plan fits in memory, and a config that would fit. Returns 2 if it does not fit.
int print_fit(const Config& config, const Ranks& ranks, const MemoryPlan& plan) {
    Runtime here(dry_runtime_options(config));
    const int64_t available = here.device().available_bytes();
    if (available < 0) {
        std::printf("  no such device here to compare with\n");
        return 0;
    }
    const std::optional<AmountLimit> limit =
        plan.device == DeviceKind::cpu ? host_memory().limit : std::nullopt;
    std::printf(
        "  %s about %.1f MiB; of %.1f MiB available%s: ",
        plan.device == DeviceKind::cpu ? "program, batches and checkpoints" : "NCCL (assumed)",
        static_cast<double>(plan.needed() - plan.bytes) / kMiB, static_cast<double>(available) / kMiB,
        limit ? fmt::format(" (limit {:.1f}, {})", static_cast<double>(limit->limit) / kMiB, limit->source)
                    .c_str()
              : "");
    if (plan.needed() <= available) {
        std::printf("fits\n");
        return 0;
    }
    const int64_t tokens = largest_microbatch(config, available, ranks);
    std::printf("DOES NOT FIT, %s\n",
                tokens > 0 ? fmt::format("--set batch.microbatch_tokens={} would", tokens).c_str()
                           : "lower batch.sequence_length or the model's size");
    if (fits_with_full_checkpointing(config, available, ranks))
        std::printf("  --set memory.activation_checkpointing=full would fit\n");
    return static_cast<int>(ExitCode::usage);
}

int print_plan(const PlanOptions& options, int num_ranks) {
    const Config config = read_config(options.config, options.settings);
    const Config stage = config.in_chosen_stage(options.stage);
    if (options.search) return print_search(options, stage, num_ranks);
    const Ranks ranks = plan_ranks(config, num_ranks);
    if (options.timeline) return print_timeline(options, stage, ranks);
    if (!options.gpu.empty()) return print_gpu_plan(options, config, ranks);
    if (!options.graph.empty()) return write_unit_picture(options, stage);
    if (options.parameters) {
        std::printf("%s", (options.json ? parameters_json(config) : parameters_text(config)).c_str());
        return 0;
    }
    std::printf("%s", config_to_json(config).c_str());

    const MemoryPlan plan = plan_memory(config, ranks);
    const ParameterTable table = parameters_of(config.model, config.longest_sequence());
    std::printf("%s", layers_text(stage).c_str());
    std::printf("%s", node_work_text(node_work(stage, ranks)).c_str());
    print_parameters(table, config.optimizers);
    for (const std::string& what : parts_that_cannot_learn(config.model))
        std::printf("warning: %s\n", what.c_str());
    print_batch(config, ranks, plan.work);
    std::printf("computing: %s\n", Runtime(dry_runtime_options(config)).description().c_str());
    print_communication(
        stage, ranks, plan.compute_dtype,
        plan.values[static_cast<size_t>(options.stage.value_or(config.schedule.num_stages() - 1))]);
    std::printf("\nmemory per rank (%s, %s)\n%s", word_of(std::optional(plan.device)),
                std::string(name_of(plan.compute_dtype)).c_str(), plan.table.c_str());
    std::printf("%s", memory_peak_text(plan.memory_peak).c_str());
    return print_fit(config, ranks, plan);
}

}  // namespace

int run_plan(const PlanOptions& options) {
    if (options.options_help) {
        std::printf("Every option of a config, with its default:\n%s", describe_options().c_str());
        return 0;
    }
    if (!options.option_pages.empty()) {
        std::error_code error;
        std::filesystem::create_directories(options.option_pages, error);
        if (error)
            throw_usage("--option-pages {}: the folder cannot be made: {}", options.option_pages,
                        error.message());
        const auto pages = option_pages();
        for (const auto& [file, page] : pages)
            write_file(options.option_pages + "/" + file, page, OutputFile::Path::own);
        std::printf("%s: %zu pages\n", options.option_pages.c_str(), pages.size());
        return 0;
    }
    if (options.schema) {
        std::printf("%s", config_schema().c_str());
        return 0;
    }
    if (options.metrics) {
        std::printf("%s", metric_fields().c_str());
        return 0;
    }
    if (options.gpu.empty() && ((options.json && !options.parameters) || !options.measured.empty()))
        throw_usage("plan: --json needs --gpu or --parameters, --measured needs --gpu");
    if (options.gpu.empty() && (options.timeline || options.search || !options.network.empty()))
        throw_usage("plan: --timeline, --search and --network need --gpu");
    if (options.timeline && options.search)
        throw_usage("plan: --timeline shows one layout, --search many: one of them at a time");
    if (!options.trace.empty() && !options.timeline) throw_usage("plan: --trace needs --timeline");
    if (options.timeline && options.json) throw_usage("plan: --timeline has no --json");
    if (options.parameters && (!options.gpu.empty() || !options.graph.empty()))
        throw_usage("plan: --parameters lists, --gpu and --graph show something else: one of them at a time");
    if (options.unit && options.graph.empty())
        throw_usage("plan: --unit {} is for the picture that --graph asks for", *options.unit);
    if (!options.graph.empty() && !options.gpu.empty())
        throw_usage("plan: --graph draws the model, --gpu models a step: one of them at a time");
    if (options.config.empty())
        throw_usage("plan: name a config, or ask for --options, --schema or --metrics");
    // Under a launcher one rank prints the plan.
    const auto world = make_world();
    return run_rank(*world, [&] {
        int result = 0;
        check_together(*world, [&] {
            if (world->rank() != 0) return;
            result = print_plan(options, options.ranks > 0 ? options.ranks : world->size());
        });
        return static_cast<int>(world->max(result));
    });
}

}  // namespace speedrun
