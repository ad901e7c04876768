#include "train/commands/plan_gpu.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "train/commands/plan_graph.h"
#include "train/engine/step_model.h"

namespace speedrun {

namespace {

struct Speed {  // a step of all ranks
    double tokens_per_s, tokens_per_s_of_one, share_of_floor;
};

Speed speed_of(const StepModel& model, const Config& config, const Ranks& ranks) {
    const double tokens_per_s = static_cast<double>(config.batch.tokens_per_step) / (model.ms * 1e-3);
    return {tokens_per_s, tokens_per_s / ranks.num_data_ranks(), model.floor_ms / model.ms};
}

std::vector<std::string> gpu_notes(const Config& config, const Ranks& ranks) {
    std::vector<std::string> notes = {
        "modelled, not measured: operations one after the other, without the copies of tokens to the GPU",
        "attention is counted without documents, which hide keys"};
    if (ranks.mesh().world_size() > 1)
        notes.push_back("what the ranks send each other takes no time here: see plan without --gpu");
    if (config.cuda.attention == AttentionKind::cudnn)
        notes.push_back("attention is modelled as our own kernels, not as cuDNN's");
    return notes;
}

void print_gpu_text(const PlanOptions& options, const Config& config, const Ranks& ranks, const GpuModel& gpu,
                    const StepModel& model) {
    const Speed speed = speed_of(model, config, ranks);
    const std::string of_ranks =
        ranks.mesh().world_size() > 1 ? fmt::format("one of {} GPUs", ranks.mesh().world_size()) : "one GPU";
    std::printf("%s on %s (modelled), %s, %s: steps of %lld tokens (%lld microbatches of %lld)\n",
                options.config.c_str(), gpu.title, of_ranks.c_str(), std::string(name_of(model.real)).c_str(),
                static_cast<long long>(config.batch.tokens_per_step),
                static_cast<long long>(model.microbatches),
                static_cast<long long>(config.batch.microbatch_tokens));
    std::printf("rates: %.1f TFLOP/s, %.2f TB/s, %g us from kernel to kernel (%s)\n\n",
                gpu.flops_per_s(model.real) * 1e-12, gpu.bytes_per_s * 1e-12, gpu.launch_gap_us, gpu.source);
    size_t width = std::string("operation").size();
    for (const ModelledOperation& row : model.operations) width = std::max(width, row.name.size());
    const auto columns = static_cast<int>(width);
    std::printf("%-*s %8s %10s %10s %9s %9s %9s  %-8s %s\n", columns, "operation", "calls", "GFLOP", "MB",
                "floor ms", "modelled", "lost ms", "bound by", "modelled by");
    for (const ModelledOperation& row : model.operations) {
        std::printf("%-*s %8g %10.1f %10.1f %9.3f %9.3f %9.3f  %-8s %s\n", columns, row.name.c_str(),
                    row.calls, row.flops * 1e-9, row.bytes * 1e-6, row.floor_ms, row.ms, row.lost_ms(),
                    row.compute_bound ? "compute" : "memory", row.source.c_str());
    }
    std::printf("%-*s %8s %10s %10s %9.3f %9.3f %9.3f\n\n", columns, "step", "", "", "", model.floor_ms,
                model.ms, model.ms - model.floor_ms);
    std::printf(
        "modelled step %.3f ms, %.3f ms a microbatch: %.0f tokens/s%s; sum of floors %.3f ms: %.0f%% of the "
        "step; %.3f ms between kernels\n",
        model.ms, model.ms / static_cast<double>(model.microbatches), speed.tokens_per_s,
        ranks.mesh().world_size() > 1 ? fmt::format(" ({:.0f} a GPU)", speed.tokens_per_s_of_one).c_str()
                                      : "",
        model.floor_ms, 100 * speed.share_of_floor, model.gap_ms);
    for (const std::string& note : gpu_notes(config, ranks)) std::printf("note: %s\n", note.c_str());
}

void print_gpu_json(const PlanOptions& options, const Config& config, const Ranks& ranks, const GpuModel& gpu,
                    const StepModel& model) {
    using Json = nlohmann::ordered_json;
    const Speed speed = speed_of(model, config, ranks);
    Json json = {{"config", options.config},
                 {"kind", "modelled"},
                 {"gpu",
                  {{"name", gpu.name},
                   {"title", gpu.title},
                   {"gflops_per_s", gpu.flops_per_s(model.real) * 1e-9},
                   {"gbytes_per_s", gpu.bytes_per_s * 1e-9},
                   {"launch_gap_us", gpu.launch_gap_us},
                   {"source", gpu.source}}},
                 {"dtype", name_of(model.real)},
                 {"ranks", ranks.mesh().world_size()},
                 {"tokens_per_step", int64_t{config.batch.tokens_per_step}},
                 {"microbatches", model.microbatches},
                 {"step",
                  {{"ms", model.ms},
                   {"floor_ms", model.floor_ms},
                   {"gap_ms", model.gap_ms},
                   {"share_of_floor", speed.share_of_floor},
                   {"tokens_per_s", speed.tokens_per_s}}}};
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
                                      {"floor_ms", row.floor_ms},
                                      {"ms", row.ms},
                                      {"lost_ms", row.lost_ms()},
                                      {"bound", row.compute_bound ? "compute" : "memory"},
                                      {"source", row.source}});
    }
    json["notes"] = gpu_notes(config, ranks);
    std::printf("%s\n", json.dump(2).c_str());
}

}  // namespace

int print_gpu_plan(const PlanOptions& options, const Config& config, const Ranks& ranks) {
    GpuModel gpu = find_gpu_model(options.gpu);
    std::optional<MeasuredKernels> measured;
    if (!options.measured.empty()) {
        measured.emplace(options.measured, gpu_compute_type(config), config.cuda.products == Products::hand);
        gpu = measured->with_rates(gpu);
    }
    const StepModel model = model_step(config, ranks, gpu, measured ? &*measured : nullptr);
    (options.json ? print_gpu_json : print_gpu_text)(options, config, ranks, gpu, model);
    return 0;
}

}  // namespace speedrun
