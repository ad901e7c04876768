// Nodes that are neighbours in a pass and for which there is one operation.
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
    virtual size_t matches(std::span<const Node* const> nodes) const = 0;
    // One call for each of them.
    virtual void forward(std::span<const Call> calls) const = 0;
};

using Fusions = std::vector<std::unique_ptr<Fusion>>;

}  // namespace speedrun
