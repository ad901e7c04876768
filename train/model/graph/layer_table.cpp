#include "train/model/graph/layer_table.h"

namespace speedrun {

namespace {

// Joins "block 3" and "block 7" into "blocks 3-7".
std::string joined(const std::string& first, const std::string& last) {
    const size_t number = first.rfind(' ');
    const bool counted = number != std::string::npos &&
                         first.find_first_not_of("0123456789", number + 1) == std::string::npos &&
                         last.compare(0, number + 1, first, 0, number + 1) == 0;
    if (!counted) return fmt::format("{} to {}", first, last);
    return fmt::format("{}s {}-{}", first.substr(0, number), first.substr(number + 1),
                       last.substr(number + 1));
}

}  // namespace

std::vector<Layer> layer_table(const NodeGraph& graph) {
    std::vector<std::vector<std::string>> nodes(static_cast<size_t>(graph.num_units()));
    for (const auto& node : graph.nodes())
        nodes[static_cast<size_t>(graph.unit_of(*node))].push_back(node->describe(graph));
    std::vector<Layer> layers;
    for (int unit = 0; unit < graph.num_units(); ++unit) {
        std::vector<std::string>& here = nodes[static_cast<size_t>(unit)];
        if (layers.empty() || layers.back().nodes != here) {
            layers.push_back({unit, unit, graph.unit_name(unit), std::move(here)});
            continue;
        }
        Layer& layer = layers.back();
        layer.last_unit = unit;
        layer.name = joined(graph.unit_name(layer.first_unit), graph.unit_name(unit));
    }
    return layers;
}

}  // namespace speedrun
