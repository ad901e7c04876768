#include "train/model/graph/shared_terms.h"

#include <algorithm>

#include "kernels/ops/combine.h"

namespace speedrun {

namespace {

ValueId value_of(const Node& node, size_t read) {
    return node.reads()[read].value;
}

// Calls body(value) for the values and coefficients of a group's terms.
template <class Body>
void each_value(std::span<const SharingNode> group, const Body& body) {
    for (const SharingNode& member : group) {
        for (const Node::SharedTerm& term : member.terms) {
            body(value_of(*member.node, term.value));
            body(value_of(*member.node, term.coefficient));
        }
    }
}

}  // namespace

// A group grows in order of backward. It ends before any other access to the gradient of one of its values or
// coefficients, so that contributions to a gradient keep their order.
SharedTerms::SharedTerms(const NodeGraph& graph) : graph_(graph), group_of_(graph.nodes().size(), -1) {
    std::vector<Group> open;
    for (auto at = graph.nodes().rbegin(); at != graph.nodes().rend(); ++at) {
        const SharingNode next{at->get(), (*at)->shared_terms(graph)};
        const auto joined =
            std::find_if(open.begin(), open.end(), [&](const Group& group) { return joins(group, next); });
        for (Group& group : open)
            if (joined == open.end() || &group != &*joined)
                if (touches(**at, group)) close(group);
        if (joined != open.end())
            joined->push_back(next);
        else if (joins({}, next))
            open.push_back({next});
        std::erase_if(open, [](const Group& group) { return group.empty(); });
    }
    for (Group& group : open) close(group);
}

// Two nodes already save more than the pass over the gradients of their sums costs.
void SharedTerms::close(Group& group) {
    if (group.size() > 1) {
        for (const SharingNode& member : group)
            group_of_[static_cast<size_t>(member.node->id())] = static_cast<int>(groups_.size());
        groups_.push_back(group);
    }
    group.clear();
}

// A first node has two values, so that one pass over the gradient of its sum serves both.
bool SharedTerms::joins(const Group& group, const SharingNode& next) const {
    if (next.terms.empty() || group.size() == kMaxTerms) return false;
    if (group.empty() && next.terms.size() != kMaxShared) return false;
    std::vector<ValueId> values, coefficients;
    for (const SharingNode& member : group)
        for (const Node::SharedTerm& term : member.terms)
            coefficients.push_back(value_of(*member.node, term.coefficient));
    for (const Node::SharedTerm& term : (group.empty() ? next : group.front()).terms)
        values.push_back(value_of(group.empty() ? *next.node : *group.front().node, term.value));
    const auto has = [](const std::vector<ValueId>& list, ValueId value) {
        return std::find(list.begin(), list.end(), value) != list.end();
    };
    std::vector<ValueId> seen;
    for (const Node::SharedTerm& term : next.terms) {
        const ValueId value = value_of(*next.node, term.value),
                      coefficient = value_of(*next.node, term.coefficient);
        if (!has(values, value) || has(seen, value) || has(coefficients, coefficient)) return false;
        seen.push_back(value);
        coefficients.push_back(coefficient);
    }
    // Its other reads contribute to other gradients.
    for (size_t i = 0; i < next.node->reads().size(); ++i) {
        const bool is_term = std::any_of(
            next.terms.begin(), next.terms.end(),
            [&](const Node::SharedTerm& term) { return term.value == i || term.coefficient == i; });
        if (is_term || next.node->reads()[i].gradient == GradientRule::none) continue;
        for (const std::vector<ValueId>* const list : {&values, &coefficients})
            for (const ValueId value : *list)
                if (overlap(value, value_of(*next.node, i))) return false;
    }
    return true;
}

bool SharedTerms::touches(const Node& node, const Group& group) const {
    bool found = false;
    each_value(group, [&](ValueId value) {
        for (const Node::Read& read : node.reads())
            found |= read.gradient != GradientRule::none && overlap(read.value, value);
        for (const Node::Write& write : node.writes()) found |= overlap(write.value, value);
    });
    return found;
}

// True if the values have memory in common: columns of one root.
bool SharedTerms::overlap(ValueId a, ValueId b) const {
    const Value &x = graph_[a], &y = graph_[b];
    if (x.root != y.root) return false;
    if (!x.is_view || !y.is_view) return true;
    return x.first_column < y.first_column + y.extents.back().size &&
           y.first_column < x.first_column + x.extents.back().size;
}

std::span<const Node::SharedTerm> SharedTerms::of(const Node& node) const {
    const int group = group_of_[static_cast<size_t>(node.id())];
    if (group < 0) return {};
    for (const SharingNode& member : groups_[static_cast<size_t>(group)])
        if (member.node == &node) return member.terms;
    return {};
}

std::span<const SharingNode> SharedTerms::after(const Node& node) const {
    const int group = group_of_[static_cast<size_t>(node.id())];
    if (group < 0 || groups_[static_cast<size_t>(group)].back().node != &node) return {};
    return groups_[static_cast<size_t>(group)];
}

}  // namespace speedrun
