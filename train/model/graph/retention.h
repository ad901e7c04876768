// Which values backward finds as forward left them, and which nodes it runs again: activation checkpointing
// (Chen et al. 2016, "Training deep nets with sublinear memory cost"), by what each node costs.
#pragma once

#include <optional>
#include <vector>

#include "train/model/graph/graph.h"

namespace speedrun {

// By unit: values that cost more than this are not kept (Cost::input keeps a unit's inputs alone); nothing:
// all are.
using Retained = std::vector<std::optional<Cost>>;

struct Retention {
    std::vector<bool> repeated;                     // by value: backward reads one that was computed again
    std::vector<std::vector<const Node*>> repeats;  // by unit: the nodes that do it, in order of forward
};

// A value has the cost of the node that writes it. One that a node rewrites in place has that of what was
// there, since that can't be had again. What a node hands on (Node::hands_on) costs a product if it reads a
// product of its unit, and is an input if all of it comes from other units. A value that another unit's
// backward reads is kept.
Retention retention_of(const NodeGraph& graph, const Retained& retained);

}  // namespace speedrun
