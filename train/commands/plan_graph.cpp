#include "train/commands/plan_graph.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "data/durable_file.h"
#include "train/engine/memory_plan.h"
#include "train/model/build_model.h"
#include "train/model/graph/dot_text.h"
#include "train/model/nodes/fusions.h"

namespace speedrun {

ModelGraph model_graph(const Config& config) {
    const BatchConfig& batch = config.batch;
    // The number of rows per chunk of the head affects memory only; it appears neither in descriptions nor in pictures.
    return build_model(config.model,
                       {.tokens = batch.microbatch_tokens, .sequence_length = batch.sequence_length},
                       {.documents = config.data.document_mask, .logit_rows = batch.sequence_length});
}

std::string layers_text(const Config& config) {
    constexpr size_t kColumns = 120;
    const ModelGraph model = model_graph(config);
    const std::vector<Layer> layers = layer_table(model.graph);
    size_t width = std::string("layer").size();
    for (const Layer& layer : layers) width = std::max(width, layer.name.size());
    std::string text =
        fmt::format("\nlayers: {} units of {} nodes\n  {:<6} {:<{}}  nodes, in order of forward\n",
                    model.graph.num_units(), model.graph.nodes().size(), "unit", "layer", width);
    for (const Layer& layer : layers) {
        const std::string units = layer.first_unit == layer.last_unit
                                      ? fmt::format("{}", layer.first_unit)
                                      : fmt::format("{}-{}", layer.first_unit, layer.last_unit);
        std::string line = fmt::format("  {:<6} {:<{}}  ", units, layer.name, width);
        const std::string indent(line.size(), ' ');
        for (size_t i = 0; i < layer.nodes.size(); ++i) {
            const std::string node = layer.nodes[i] + (i + 1 < layer.nodes.size() ? ";" : "");
            if (line.size() > indent.size() && line.size() + node.size() > kColumns) {
                text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
                line = indent;
            }
            line += node + " ";
        }
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
}

std::string node_work_text(const std::vector<NodeWork>& work) {
    size_t width = 0;
    for (const NodeWork& row : work) width = std::max(width, row.name.size());
    std::string text = fmt::format(
        "\nwork of a step on one rank, by node; bytes: each operand read once, each result written once\n"
        "  {:<{}}  {:>14} {:>9} {:>9}  {:>15} {:>9} {:>9}\n",
        "node", width, "forward: calls", "GFLOP", "MiB", "backward: calls", "GFLOP", "MiB");
    NodeWork sum{.name = "sum"};
    const auto columns = [](const NodeWork::Pass& pass, int calls_width) {
        if (pass.steps == 0) return fmt::format("  {:>{}} {:>9} {:>9}", "-", calls_width, "", "");
        return fmt::format("  {:>{}} {:>9.3f} {:>9.1f}", pass.steps, calls_width,
                           static_cast<double>(pass.flops) * 1e-9, static_cast<double>(pass.bytes) / kMiB);
    };
    const auto line = [&](const NodeWork& row) {
        const std::string all =
            fmt::format("  {:<{}}", row.name, width) + columns(row.forward, 14) + columns(row.backward, 15);
        text += all.substr(0, all.find_last_not_of(' ') + 1) + "\n";
    };
    for (const NodeWork& row : work) {
        line(row);
        for (auto pass : {&NodeWork::forward, &NodeWork::backward}) {
            (sum.*pass).steps += (row.*pass).steps;
            (sum.*pass).flops += (row.*pass).flops;
            (sum.*pass).bytes += (row.*pass).bytes;
        }
    }
    line(sum);
    return text;
}

std::string memory_peak_text(const MemoryPeak& busiest) {
    constexpr size_t kShown = 5;
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / kMiB; };
    size_t width = 0;
    std::vector<std::pair<std::string, int64_t>> rows;
    int64_t rest = busiest.bytes;
    for (size_t i = 0; i < std::min(kShown, busiest.kinds.size()); ++i) {
        const MemoryPeak::Kind& kind = busiest.kinds[i];
        rows.emplace_back(fmt::format("{} x {}", kind.name, kind.count), kind.bytes);
        rest -= kind.bytes;
    }
    if (busiest.kinds.size() > kShown)
        rows.emplace_back(fmt::format("{} other kinds", busiest.kinds.size() - kShown), rest);
    for (const auto& [name, bytes] : rows) width = std::max(width, name.size());
    std::string text =
        fmt::format("  activations and their gradients, most of them at once: {:.1f} MiB in {}\n",
                    mib(busiest.bytes), busiest.name);
    for (const auto& [name, bytes] : rows)
        text += fmt::format("    {:<{}} {:>10.1f}\n", name, width, mib(bytes));
    return text;
}

int write_unit_picture(const PlanOptions& options, const Config& config) {
    const std::string ending = std::filesystem::path(options.graph).extension().string();
    if (ending != ".dot" && ending != ".gv")
        throw_usage(
            "--graph {}: ends in '{}', expected .dot or .gv, from which `dot -Tsvg` of Graphviz draws a picture",
            options.graph, ending);
    const ModelGraph model = model_graph(config);
    const int num_units = model.graph.num_units();
    const int unit = options.unit.value_or(default_unit(model.graph));
    if (unit < 0 || unit >= num_units)
        throw_usage("--unit {}: the model has units 0 to {}; speedrun plan {} lists them", unit,
                    num_units - 1, options.config);
    const Fusions fusions = model_fusions();
    // Activation checkpointing does not affect the forward pass.
    const Program program =
        derive_program(model.graph, fusions, Retained(static_cast<size_t>(num_units)), DType::f32);
    const auto nodes = std::count_if(model.graph.nodes().begin(), model.graph.nodes().end(),
                                     [&](const auto& node) { return model.graph.unit_of(*node) == unit; });
    const std::string shown = fmt::format("unit {} of 0-{} ({}), {} nodes", unit, num_units - 1,
                                          model.graph.unit_name(unit), nodes);
    const std::string text = dot_text(
        {.graph = model.graph,
         .table = model.table,
         .program = program,
         .unit = unit,
         .title = fmt::format("{}: {}", std::filesystem::path(options.config).filename().string(), shown)});
    write_file(options.graph, text);
    std::printf("%s: %s\n", options.graph.c_str(), shown.c_str());
    return 0;
}

}  // namespace speedrun
