// The graph as a list of layers, to compare with a description of the model.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/graph.h"

namespace speedrun {

// Consecutive units whose nodes have equal descriptions (Node::describe) in equal order.
struct Layer {
    int first_unit = 0, last_unit = 0;
    std::string name;                // name of the units: "block 3", "blocks 3-7"
    std::vector<std::string> nodes;  // in order of forward
};

std::vector<Layer> layer_table(const NodeGraph& graph);

}  // namespace speedrun
