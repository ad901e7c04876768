#include "train/model/graph/parameter_uses.h"

#include <map>
#include <utility>

namespace speedrun {

void note_parameter_uses(const NodeGraph& graph, ParameterTable& table) {
    std::vector<std::map<int, bool>> by_unit(static_cast<size_t>(table.size()));  // read by backward?
    for (const auto& node : graph.nodes()) {
        for (const Node::Use& use : node->uses()) {
            // What backward may compute again, it reads again.
            const bool again = use.in_backward || node->cost() != Cost::input;
            by_unit[static_cast<size_t>(use.parameter)][graph.unit_of(*node)] |= again;
        }
    }
    for (const Parameter& p : table.all()) {
        std::vector<UnitUse> uses;
        for (const auto& [unit, again] : by_unit[static_cast<size_t>(p.id)])
            uses.push_back({.unit = unit, .in_backward = again});
        table.set_uses(p.id, std::move(uses));
    }
    table.set_num_units(graph.num_units());
}

}  // namespace speedrun
