// The graph as a list that a person can hold against the description of a model.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/graph.h"

namespace speedrun {

// Units that follow each other and whose nodes have the same descriptions (Node::describe) in the same order.
struct Layer {
    int first_unit = 0, last_unit = 0;
    std::string name;                // of the units: "block 3", "blocks 3-7"
    std::vector<std::string> nodes;  // descriptions, in order of forward
};

std::vector<Layer> layer_table(const NodeGraph& graph);

}  // namespace speedrun
