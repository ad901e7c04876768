// Fusion: runs consecutive nodes as one operation.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "train/model/graph/call.h"

namespace speedrun {

class Fusion {
  public:
    virtual ~Fusion() = default;
    // Returns how many of these nodes, starting with the first, one operation covers; 0: none. Nodes run in this order.
    virtual size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const = 0;
    // False if only backward is one operation.
    virtual bool has_forward() const { return true; }
    // One call per node.
    virtual void forward(std::span<const Call> /*calls*/) const {}
    // True if backward is one operation too. It then covers two nodes and does not store the gradient of the value
    // between them.
    virtual bool has_backward() const { return false; }
    // One call per node, in order of forward.
    virtual void backward(std::span<const Call> /*calls*/) const {}
};

using Fusions = std::vector<std::unique_ptr<Fusion>>;

}  // namespace speedrun
