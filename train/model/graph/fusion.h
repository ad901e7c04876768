// Nodes that are neighbours and for which there is one operation.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "train/model/graph/call.h"

namespace speedrun {

class Fusion {
  public:
    virtual ~Fusion() = default;
    // How many of these nodes, from the first on, it takes in forward; 0: none. They run in this order.
    virtual size_t matches(const NodeGraph& graph, std::span<const Node* const> nodes) const = 0;
    // One call for each of them.
    virtual void forward(std::span<const Call> calls) const = 0;
    // Is backward of these one operation too? Then it takes two nodes, and the gradient of the value between them
    // is written nowhere.
    virtual bool has_backward() const { return false; }
    // One call for each, in order of forward.
    virtual void backward(std::span<const Call> /*calls*/) const {}
};

using Fusions = std::vector<std::unique_ptr<Fusion>>;

}  // namespace speedrun
