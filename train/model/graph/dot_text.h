// Graphviz dot text of one unit of the graph: values and nodes of forward, top to bottom.
#pragma once

#include <string>

#include "train/model/graph/graph.h"
#include "train/model/graph/program.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct UnitPicture {
    const NodeGraph& graph;
    const ParameterTable& table;
    const Program& program;  // program of the graph; nodes fused in forward share a frame
    int unit = 0;
    std::string title;  // heading
};

// Values are plain labels with their dimensions, bold if backward reads them. Nodes are boxes that list their
// parameters. Inputs and outputs of the unit are outside its frame.
std::string dot_text(const UnitPicture& picture);

// Returns the middle one of the units with the most nodes.
int default_unit(const NodeGraph& graph);

}  // namespace speedrun
