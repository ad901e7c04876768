#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/comm/world.h"
#include "train/commands/commands.h"
#include "train/config/config_json.h"
#include "train/engine/memory_plan.h"
#include "train/engine/run_estimate.h"
#include "train/engine/step_bench.h"
#include "train/runlog/build_info.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

double gflops(double flops, double ms) {
    return ms > 0 ? flops / ms * 1e-6 : 0;
}

double gbytes(double bytes, double ms) {
    return ms > 0 ? bytes / ms * 1e-6 : 0;
}

double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

const char* bound_of(const OperationStats& row) {
    return row.compute_bound ? "compute" : "memory";
}

// A step without events: the reference for the operations' shares.
struct Whole {
    double tokens_per_s, gflops, share_of_product, share_of_bound;
};

Whole whole_of(const StepBench& bench, const Config& config) {
    const double ms = bench.plain_step_ms, rate = gflops(static_cast<double>(bench.work.flops), ms);
    return {static_cast<double>(config.batch.tokens_per_step) / (ms * 1e-3), rate,
            rate * 1e9 / bench.peaks.flops_per_s, bench.profile.bound_ms / ms};
}

void print_text(const BenchOptions& options, const Config& config, const Runtime& runtime,
                const StepBench& bench) {
    const StepProfile& p = bench.profile;
    const Whole whole = whole_of(bench, config);
    std::printf("%s: %s, steps of %lld tokens (%lld microbatches) of %s\n", options.config.c_str(),
                runtime.description().c_str(), static_cast<long long>(config.batch.tokens_per_step),
                static_cast<long long>(config.microbatches_per_step()),
                bench.data == "dataset" ? "the dataset" : "made-up tokens: its shards are not there");
    std::printf("ceilings: %.1f GFLOP/s (%s), %.1f GB/s (%s)\n\n", bench.peaks.flops_per_s * 1e-9,
                bench.peaks.product_by.c_str(), bench.peaks.bytes_per_s * 1e-9, bench.peaks.copy_by.c_str());
    size_t width = std::string("operations").size();
    for (const OperationStats& row : p.operations) width = std::max(width, row.name.size());
    const auto columns = static_cast<int>(width);
    std::printf("%-*s %9s %10s %6s %9s %8s %10s %9s  %s\n", columns, "operation", "calls", "ms", "step",
                "GFLOP/s", "GB/s", "floor ms", "reached", "bound by");
    for (const OperationStats& row : p.operations) {
        std::printf("%-*s %9g %10.3f %5.1f%% %9.1f %8.1f %10.3f %8.0f%%  %s\n", columns, row.name.c_str(),
                    row.calls, row.ms, percent(row.ms, p.step_ms), gflops(row.flops, row.ms),
                    gbytes(row.bytes, row.ms), row.bound_ms, percent(row.bound_ms, row.ms), bound_of(row));
    }
    const auto line = [&](const char* name, double ms) {
        std::printf("%-*s %9s %10.3f %5.1f%%\n", columns, name, "", ms, percent(ms, p.step_ms));
    };
    std::printf("\n");
    line("operations", p.operations_ms);
    line("- at once", p.overlapped_ms);
    line("+ in none", p.gaps_ms);
    line("= step", p.step_ms);
    std::printf(
        "\n"
        "step without events %.3f ms (events around operations: %+.1f%%): %.0f tokens/s, %.1f GFLOP/s, "
        "%.0f%% of the product ceiling\n"
        "sum of floors %.3f ms: %.0f%% of the step\n",
        bench.plain_step_ms, percent(p.step_ms - bench.plain_step_ms, bench.plain_step_ms),
        whole.tokens_per_s, whole.gflops, 100 * whole.share_of_product, p.bound_ms,
        100 * whole.share_of_bound);
    std::printf("memory: %.1f MiB planned, %.1f MiB touched by the process\n",
                static_cast<double>(bench.memory_bytes) / kMiB,
                static_cast<double>(bench.resident_bytes) / kMiB);
    if (!bench.limits.empty()) std::printf("note: %s\n", bench.limits.c_str());
    for (const std::string& note : runtime.notes()) std::printf("note: %s\n", note.c_str());
}

Json json_of(const OperationStats& row) {
    return {{"name", row.name},
            {"calls", row.calls},
            {"ms", row.ms},
            {"flops", row.flops},
            {"bytes", row.bytes},
            {"gflops_per_s", gflops(row.flops, row.ms)},
            {"gbytes_per_s", gbytes(row.bytes, row.ms)},
            {"floor_ms", row.bound_ms},
            {"share_of_floor", row.ms > 0 ? row.bound_ms / row.ms : 0},
            {"bound", bound_of(row)}};
}

void print_json(const BenchOptions& options, const Config& config, const Runtime& runtime,
                const StepBench& bench) {
    const StepProfile& p = bench.profile;
    const Whole whole = whole_of(bench, config);
    Json json = {
        {"config", options.config},
        {"device", runtime.description()},
        {"git_sha", build_info().git_sha},
        {"threads", runtime.threads()},
        {"dtype", name_of(runtime.compute_dtype())},
        {"data", bench.data},
        {"tokens_per_step", int64_t{config.batch.tokens_per_step}},
        {"ceilings",
         {{"gflops_per_s", bench.peaks.flops_per_s * 1e-9},
          {"product_by", bench.peaks.product_by},
          {"gbytes_per_s", bench.peaks.bytes_per_s * 1e-9},
          {"copy_by", bench.peaks.copy_by}}},
        {"step",
         {{"ms", bench.plain_step_ms},
          {"metered_ms", p.step_ms},
          {"metered_steps", p.steps},
          {"operations_ms", p.operations_ms},
          {"overlapped_ms", p.overlapped_ms},
          {"gaps_ms", p.gaps_ms},
          {"floor_ms", p.bound_ms},
          {"share_of_floor", whole.share_of_bound},
          {"flops", bench.work.flops},
          {"recomputed_flops", bench.work.recomputed_flops},
          {"operations_flops", p.flops},
          {"gflops_per_s", whole.gflops},
          {"share_of_product_ceiling", whole.share_of_product},
          {"tokens_per_s", whole.tokens_per_s}}},
        {"memory", {{"planned_bytes", bench.memory_bytes}, {"touched_bytes", bench.resident_bytes}}}};
    json["operations"] = Json::array();
    for (const OperationStats& row : p.operations) json["operations"].push_back(json_of(row));
    json["notes"] = runtime.notes();
    if (!bench.limits.empty()) json["notes"].push_back(bench.limits);
    std::printf("%s\n", json.dump(2).c_str());
}

int print_run(const BenchOptions& options, const Config& config) {
    const RunEstimate estimate = estimate_run(config, *options.run_seconds);
    if (options.json) {
        Json json = {{"config", options.config},
                     {"device", estimate.device},
                     {"git_sha", build_info().git_sha},
                     {"train_ms", estimate.train_ms()},
                     {"stages", Json::array()}};
        for (const EstimatedStage& stage : estimate.stages)
            json["stages"].push_back(
                {{"first_step", stage.first_step}, {"end_step", stage.end_step}, {"step_ms", stage.step_ms}});
        std::printf("%s\n", json.dump(2).c_str());
        return 0;
    }
    for (const EstimatedStage& stage : estimate.stages)
        std::printf("steps %lld to %lld: %.1f ms each\n", static_cast<long long>(stage.first_step + 1),
                    static_cast<long long>(stage.end_step), stage.step_ms);
    std::printf("%s: %lld steps would take about %.1f s of training here (%s)\n", options.config.c_str(),
                static_cast<long long>(estimate.stages.back().end_step), estimate.train_ms() * 1e-3,
                estimate.device.c_str());
    return 0;
}

}  // namespace

int run_bench(const BenchOptions& options) {
    const auto world = make_training_world({}, options.alone);
    return run_rank(*world, [&] {
        if (world->size() > 1) {
            throw_usage("bench times one rank, and a launcher started {}: run it without one", world->size());
        }
        Config config = read_config(options.config, options.settings);
        if (options.threads) config.threads = *options.threads;
        if (options.run_seconds) return print_run(options, config);
        config = config.in_chosen_stage(options.stage);
        const Ranks ranks = resolve_ranks(config, *world);
        Runtime runtime(runtime_options(config, ranks));
        require_memory(config, runtime.device(), ranks);
        StepBenchOptions steps;
        steps.steps = options.steps;
        steps.warmup = options.warmup;
        const StepBench bench = bench_steps(config, runtime, ranks, steps);
        (options.json ? print_json : print_text)(options, config, runtime, bench);
        return 0;
    });
}

}  // namespace speedrun
