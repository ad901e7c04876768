#include "train/model/graph/retention.h"

#include <algorithm>

namespace speedrun {

namespace {

class Costs {
  public:
    explicit Costs(const NodeGraph& graph) : graph_(graph), cost_(graph.values().size(), Cost::input) {
        for (const auto& node : graph.nodes()) {
            const Cost cost = cost_of(*node);
            for (const Node::Write& write : node->writes())
                of(write.value) = std::min(cost, rewritten(*node, write.value) ? of(write.value) : cost);
        }
    }
    Cost operator[](ValueId value) const { return cost_[root(value)]; }

  private:
    size_t root(ValueId value) const { return static_cast<size_t>(graph_[value].root); }
    Cost& of(ValueId value) { return cost_[root(value)]; }
    bool rewritten(const Node& node, ValueId value) const {
        return std::any_of(node.reads().begin(), node.reads().end(),
                           [&](const Node::Read& read) { return root(read.value) == root(value); });
    }
    Cost cost_of(const Node& node) const {
        Cost cost = node.cost();
        for (const Node::Write& write : node.writes())
            if (rewritten(node, write.value)) cost = std::min(cost, (*this)[write.value]);
        if (!node.passes_through()) return cost;
        bool from_here = false, of_product = false;
        for (const Node::Read& read : node.reads()) {
            if (graph_[read.value].unit != graph_.unit_of(node)) continue;
            from_here = true;
            of_product |= (*this)[read.value] == Cost::product;
        }
        return !from_here ? Cost::input : of_product ? Cost::product : cost;
    }

    const NodeGraph& graph_;
    std::vector<Cost> cost_;  // index: root
};

}  // namespace

Retention retention_of(const NodeGraph& graph, const Retained& retained) {
    const Costs costs(graph);
    const size_t num_values = graph.values().size();
    const auto root = [&](ValueId value) { return static_cast<size_t>(graph[value].root); };
    std::vector<const Node*> writer(num_values);
    std::vector<bool> needed(num_values), kept(num_values);
    for (const auto& node : graph.nodes()) {
        for (const Node::Write& write : node->writes()) {
            if (!writer[root(write.value)]) writer[root(write.value)] = node.get();
            if (write.in_backward) needed[root(write.value)] = true;
        }
        for (const Node::Read& read : node->reads()) {
            if (!read.in_backward) continue;
            needed[root(read.value)] = true;
            if (graph[read.value].unit != graph.unit_of(*node)) kept[root(read.value)] = true;
        }
    }

    Retention retention{
        .repeated = std::vector<bool>(num_values),
        .repeats = std::vector<std::vector<const Node*>>(static_cast<size_t>(graph.num_units()))};
    const auto is_kept = [&](ValueId value) {
        const Value& v = graph[static_cast<ValueId>(root(value))];
        const auto& most = retained[static_cast<size_t>(v.unit)];
        return v.holder != Holder::program || kept[root(value)] || !most || costs[value] <= *most;
    };
    // Walks back from the last node: the inputs of a recomputed node are needed too.
    for (auto at = graph.nodes().rbegin(); at != graph.nodes().rend(); ++at) {
        const Node& node = **at;
        const bool again =
            !node.forward_in_backward() &&
            std::any_of(node.writes().begin(), node.writes().end(), [&](const Node::Write& write) {
                return needed[root(write.value)] && !is_kept(write.value);
            });
        if (!again) continue;
        const auto unit = static_cast<size_t>(graph.unit_of(node));
        retention.repeats[unit].insert(retention.repeats[unit].begin(), &node);
        for (const Node::Write& write : node.writes())
            if (!is_kept(write.value)) retention.repeated[root(write.value)] = true;
        for (const Node::Read& read : node.reads()) {
            needed[root(read.value)] = true;
            if (static_cast<size_t>(graph[read.value].unit) != unit) kept[root(read.value)] = true;
        }
    }
    for (size_t value = 0; value < num_values; ++value)
        retention.repeated[value] = retention.repeated[root(static_cast<ValueId>(value))];
    return retention;
}

}  // namespace speedrun
