// Terms of weighted sums with the same values. Their gradients are computed together: one pass over the gradients of the
// sums replaces one pass per sum over the gradients of the values.
#pragma once

#include <span>
#include <vector>

#include "train/model/graph/graph.h"

namespace speedrun {

struct SharingNode {
    const Node* node;
    std::vector<Node::SharedTerm> terms;
};

class SharedTerms {
  public:
    explicit SharedTerms(const NodeGraph& graph);

    // Returns the terms of this node with gradients that are not computed in its backward.
    std::span<const Node::SharedTerm> of(const Node& node) const;
    // Returns the group that ends with this node, in order of backward; else nothing.
    std::span<const SharingNode> after(const Node& node) const;

  private:
    using Group = std::vector<SharingNode>;
    void close(Group& group);
    bool joins(const Group& group, const SharingNode& next) const;
    bool touches(const Node& node, const Group& group) const;
    bool overlap(ValueId a, ValueId b) const;

    const NodeGraph& graph_;
    std::vector<Group> groups_;
    std::vector<int> group_of_;  // index: node; −1: none
};

}  // namespace speedrun
