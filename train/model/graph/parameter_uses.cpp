#include "train/model/graph/parameter_uses.h"

#include <algorithm>
#include <map>
#include <utility>

namespace speedrun {

namespace {

// Computes the dimensions over which gradients sum (note_parameter_uses), from the last node to the first.
class SummedDimensions {
  public:
    explicit SummedDimensions(const NodeGraph& graph)
        : graph_(graph), from_parameters_(graph.values().size()), summed_(graph.values().size()) {
        for (const auto& node : graph.nodes()) {
            const bool all = std::all_of(node->reads().begin(), node->reads().end(), [&](const auto& read) {
                return from_parameters_[index(read.value)] || graph[read.value].holder == Holder::constant;
            });
            for (const Node::Write& write : node->writes()) from_parameters_[index(write.value)] = all;
        }
        for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
            const DimensionSet over = of_node(**node);
            for (const Node::Read& read : (*node)->reads())
                if (read.gradient != GradientRule::none) summed_[index(read.value)].add(over);
        }
    }

    // Returns the dimensions of the node's outputs. If an output depends only on parameters, adds the dimensions over
    // which its gradient sums.
    DimensionSet of_node(const Node& node) const {
        DimensionSet over;
        for (const Node::Write& write : node.writes()) {
            DimensionSet own;
            for (const Extent& extent : graph_[write.value].extents) own.add(extent.dimension);
            over.add(own);
            if (from_parameters_[index(write.value)]) over.add(summed_[index(write.value)]);
        }
        return over;
    }

  private:
    static size_t index(ValueId value) { return static_cast<size_t>(value); }

    const NodeGraph& graph_;
    std::vector<bool> from_parameters_;  // index: value; true if it depends only on parameters
    std::vector<DimensionSet> summed_;   // index: value
};

}  // namespace

void note_parameter_uses(const NodeGraph& graph, ParameterTable& table) {
    std::vector<std::map<int, bool>> by_unit(static_cast<size_t>(table.size()));  // unit -> read by backward
    std::vector<DimensionSet> summed(static_cast<size_t>(table.size()));
    const SummedDimensions dimensions(graph);
    for (const auto& node : graph.nodes()) {
        for (const Node::Use& use : node->uses()) {
            // a recomputed node reads its parameters again
            const bool again = use.in_backward || node->cost() != Cost::input;
            by_unit[static_cast<size_t>(use.parameter)][graph.unit_of(*node)] |= again;
            summed[static_cast<size_t>(use.parameter)].add(dimensions.of_node(*node));
        }
    }
    // Source and copy get equal entries in all stages, tied or not: the copy is used where the source is used last.
    for (const Parameter& p : table.all()) {
        if (p.copy_of < 0) continue;
        const auto copy = static_cast<size_t>(p.id), source = static_cast<size_t>(p.copy_of);
        for (const auto& [unit, again] : by_unit[copy]) by_unit[source][unit] |= again;
        by_unit[copy].insert(*by_unit[source].rbegin());
        summed[source].add(summed[copy]);
        summed[copy].add(summed[source]);
    }
    for (const Parameter& p : table.all()) {
        std::vector<UnitUse> uses;
        for (const auto& [unit, again] : by_unit[static_cast<size_t>(p.id)])
            uses.push_back({.unit = unit, .in_backward = again});
        table.set_uses(p.id, std::move(uses));
        for (const Dimension own : p.dimensions) {
            summed[static_cast<size_t>(p.id)].remove(own);
            if (own == Dimension::columns)
                summed[static_cast<size_t>(p.id)].remove(Dimension::width);  // columns are part of width
        }
        table.set_summed(p.id, summed[static_cast<size_t>(p.id)]);
    }
    table.set_num_units(graph.num_units());
}

}  // namespace speedrun
