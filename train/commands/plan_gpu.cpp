#include "train/commands/plan_gpu.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "train/commands/plan_graph.h"
#include "train/commands/plan_timeline.h"
#include "train/engine/step_model.h"

namespace speedrun {

namespace {

struct StageTime {
    int64_t first_step, end_step, tokens_per_step;
    double ms;              // per step: sum of the operations; for several ranks, time of the timeline
    double exposed_ms = 0;  // exposed communication, part of ms

    int64_t steps() const { return end_step - first_step; }
    double seconds() const { return static_cast<double>(steps()) * ms * 1e-3; }
};

// model_stage: returns a stage's step time and its exposed part.
using StageModel = std::function<std::pair<double, double>(const Config&)>;
std::vector<StageTime> model_run(const Config& config, const StageModel& model_stage) {
    std::vector<StageTime> times;
    for (int64_t i = 0; i < config.schedule.num_stages(); ++i) {
        const Config stage = config.in_stage(i);
        const auto [ms, exposed_ms] = model_stage(stage);
        times.push_back({config.schedule.first_step(i), config.schedule.end_step(i),
                         stage.batch.tokens_per_step, ms, exposed_ms});
    }
    return times;
}

double seconds_of(const std::vector<StageTime>& run) {
    double seconds = 0;
    for (const StageTime& stage : run) seconds += stage.seconds();
    return seconds;
}

struct Speed {  // all ranks together
    double tokens_per_s, tokens_per_s_of_one, share_of_bound;
};

Speed speed_of(const StepModel& model, const Config& config, const Ranks& ranks) {
    const double tokens_per_s = static_cast<double>(config.batch.tokens_per_step) / (model.ms * 1e-3);
    return {tokens_per_s, tokens_per_s / ranks.num_data_ranks(), model.bound_ms / model.ms};
}

std::vector<std::string> gpu_notes(const PlanOptions& options, const Config& config, const Ranks& ranks,
                                   const GpuModel& gpu) {
    std::vector<std::string> notes = {
        "modelled, not measured: operations in sequence, without the copies of tokens to the GPU",
        documents_note(config)};
    if (ranks.mesh().world_size() > 1)
        notes.push_back(
            fmt::format("operations are of one rank; stages and the run include communication{}: "
                        "see --timeline",
                        options.network.empty() ? fmt::format(" ({})", default_network(gpu).name) : ""));
    if (config.cuda.attention == AttentionKind::cudnn)
        notes.push_back("attention is modelled as our own kernels, not as cuDNN's");
    if (config.cuda.attention == AttentionKind::wgmma && !kernel_choice(config, gpu).wgmma_attention)
        notes.push_back(
            "attention is modelled as our other kernels: wgmma is bf16's, on compute capability 9.0");
    if (config.cuda.products == MatmulKind::wgmma && !kernel_choice(config, gpu).wgmma_matmul)
        notes.push_back("matmuls are modelled as cuBLASLt's: wgmma is bf16's, on compute capability 9.0");
    if (config.cuda.dependent_launch)
        notes.push_back("gaps between kernels are modelled without cuda.dependent_launch");
    return notes;
}

void print_gpu_text(const PlanOptions& options, const Config& config, const Ranks& ranks, const GpuModel& gpu,
                    const StepModel& model, const std::vector<StageTime>& run) {
    const Speed speed = speed_of(model, config, ranks);
    const std::string of_ranks =
        ranks.mesh().world_size() > 1 ? fmt::format("one of {} GPUs", ranks.mesh().world_size()) : "one GPU";
    std::printf("%s on %s (modelled), %s, %s: steps of %lld tokens (%lld microbatches of %lld)\n",
                options.config.c_str(), gpu.title, of_ranks.c_str(),
                std::string(name_of(model.compute_dtype)).c_str(),
                static_cast<long long>(config.batch.tokens_per_step),
                static_cast<long long>(model.microbatches),
                static_cast<long long>(config.batch.microbatch_tokens));
    std::printf("rates: %.1f TFLOP/s, %.2f TB/s, %g us from kernel to kernel (%s)\n\n",
                gpu.flops_per_s(model.compute_dtype) * 1e-12, gpu.bytes_per_s * 1e-12, gpu.launch_gap_us,
                gpu.source);
    size_t width = std::string("operation").size();
    for (const ModelledOperation& row : model.operations) width = std::max(width, row.name.size());
    const auto columns = static_cast<int>(width);
    std::printf("%-*s %8s %10s %10s %9s %9s %9s  %-8s %s\n", columns, "operation", "calls", "GFLOP", "MB",
                "floor ms", "modelled", "lost ms", "bound by", "modelled by");
    for (const ModelledOperation& row : model.operations) {
        std::printf("%-*s %8g %10.1f %10.1f %9.3f %9.3f %9.3f  %-8s %s\n", columns, row.name.c_str(),
                    row.calls, row.flops * 1e-9, row.bytes * 1e-6, row.bound_ms, row.ms, row.lost_ms(),
                    row.compute_bound ? "compute" : "memory", row.source.c_str());
    }
    std::printf("%-*s %8s %10s %10s %9.3f %9.3f %9.3f\n\n", columns, "step", "", "", "", model.bound_ms,
                model.ms, model.ms - model.bound_ms);
    std::printf(
        "modelled step %.3f ms, %.3f ms a microbatch: %.0f tokens/s%s; sum of floors %.3f ms: %.0f%% of the "
        "step; %.3f ms between kernels\n",
        model.ms, model.ms / static_cast<double>(model.microbatches), speed.tokens_per_s,
        ranks.mesh().world_size() > 1 ? fmt::format(" ({:.0f} a GPU)", speed.tokens_per_s_of_one).c_str()
                                      : "",
        model.bound_ms, 100 * speed.share_of_bound, model.gap_ms);
    const bool several = ranks.mesh().world_size() > 1;
    if (run.size() > 1 || several) {
        std::printf("\n%5s  %-15s %12s %12s%s %10s\n", "stage", "steps", "tokens", "ms a step",
                    several ? "   exposed ms" : "", "s");
        for (size_t i = 0; i < run.size(); ++i)
            std::printf("%5zu  %-15s %12lld %12.3f%s %10.1f\n", i,
                        fmt::format("{}-{}", run[i].first_step + 1, run[i].end_step).c_str(),
                        static_cast<long long>(run[i].tokens_per_step), run[i].ms,
                        several ? fmt::format(" {:12.3f}", run[i].exposed_ms).c_str() : "", run[i].seconds());
    }
    std::printf("modelled run of %lld steps: %.1f s\n", static_cast<long long>(run.back().end_step),
                seconds_of(run));
    for (const std::string& note : gpu_notes(options, config, ranks, gpu))
        std::printf("note: %s\n", note.c_str());
}

void print_gpu_json(const PlanOptions& options, const Config& config, const Ranks& ranks, const GpuModel& gpu,
                    const StepModel& model, const std::vector<StageTime>& run) {
    using Json = nlohmann::ordered_json;
    const Speed speed = speed_of(model, config, ranks);
    Json json = {{"config", options.config},
                 {"kind", "modelled"},
                 {"gpu",
                  {{"name", gpu.name},
                   {"title", gpu.title},
                   {"gflops_per_s", gpu.flops_per_s(model.compute_dtype) * 1e-9},
                   {"gbytes_per_s", gpu.bytes_per_s * 1e-9},
                   {"launch_gap_us", gpu.launch_gap_us},
                   {"source", gpu.source}}},
                 {"dtype", name_of(model.compute_dtype)},
                 {"ranks", ranks.mesh().world_size()},
                 {"tokens_per_step", int64_t{config.batch.tokens_per_step}},
                 {"microbatches", model.microbatches},
                 {"step",
                  {{"ms", model.ms},
                   {"floor_ms", model.bound_ms},
                   {"gap_ms", model.gap_ms},
                   {"share_of_floor", speed.share_of_bound},
                   {"tokens_per_s", speed.tokens_per_s}}}};
    json["run"] = {{"steps", run.back().end_step}, {"s", seconds_of(run)}, {"stages", Json::array()}};
    for (const StageTime& stage : run)
        json["run"]["stages"].push_back({{"steps", stage.steps()},
                                         {"tokens_per_step", stage.tokens_per_step},
                                         {"step_ms", stage.ms},
                                         {"exposed_ms", stage.exposed_ms},
                                         {"s", stage.seconds()}});
    json["layers"] = Json::array();
    for (const Layer& layer : layer_table(model_graph(config).graph))
        json["layers"].push_back({{"first_unit", layer.first_unit},
                                  {"last_unit", layer.last_unit},
                                  {"name", layer.name},
                                  {"nodes", layer.nodes}});
    json["operations"] = Json::array();
    for (const ModelledOperation& row : model.operations) {
        json["operations"].push_back({{"name", row.name},
                                      {"calls", row.calls},
                                      {"flops", row.flops},
                                      {"bytes", row.bytes},
                                      {"floor_ms", row.bound_ms},
                                      {"ms", row.ms},
                                      {"lost_ms", row.lost_ms()},
                                      {"bound", row.compute_bound ? "compute" : "memory"},
                                      {"source", row.source}});
    }
    json["notes"] = gpu_notes(options, config, ranks, gpu);
    std::printf("%s\n", json.dump(2).c_str());
}

}  // namespace

int print_gpu_plan(const PlanOptions& options, const Config& config, const Ranks& ranks) {
    const PlannedGpu planned(options, config);
    const GpuModel& gpu = planned.model();
    const MeasuredKernels* const report = planned.report();
    const Config stage = config.in_chosen_stage(options.stage);
    const StepModel model = model_step(stage, ranks, gpu, report);
    const bool several = ranks.mesh().world_size() > 1;
    const Network network = network_of(options, gpu);
    const std::vector<StageTime> run = model_run(config, [&](const Config& of) {
        if (!several) return std::pair{model_step(of, ranks, gpu, report).ms, 0.0};
        const StepTimeline step = predict_gpu_step(of, ranks, gpu, report, network).timeline;
        return std::pair{step.step_ms, step.exposed_ms};
    });
    (options.json ? print_gpu_json : print_gpu_text)(options, stage, ranks, gpu, model, run);
    return 0;
}

}  // namespace speedrun
