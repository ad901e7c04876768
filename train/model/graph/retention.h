// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost"): selects the values that
// backward reads as forward wrote them, and the nodes to recompute, by each node's cost.
#pragma once

#include <optional>
#include <vector>

#include "train/model/graph/graph.h"

namespace speedrun {

// Index: unit. Values with a higher cost are not kept (Cost::input: only the unit's inputs are kept); nullopt: all are
// kept.
using Retained = std::vector<std::optional<Cost>>;

struct Retention {
    std::vector<bool> repeated;                     // index: value; true if backward reads a recomputed copy
    std::vector<std::vector<const Node*>> repeats;  // index: unit; recomputed nodes in order of forward
};

// Selects the recomputed values and nodes. A value has the cost of the node that writes it. A value rewritten in place
// keeps the lower cost of its previous content, which cannot be recomputed. A pass-through node (Node::passes_through) costs
// a product if it reads a product of its unit, and is an input if it reads only other units. Values that another unit's
// backward reads are kept.
Retention retention_of(const NodeGraph& graph, const Retained& retained);

}  // namespace speedrun
