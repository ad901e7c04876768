// One unit of the graph as text for Graphviz's dot: values and nodes of forward from top to bottom.
#pragma once

#include <string>

#include "train/model/graph/graph.h"
#include "train/model/graph/program.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct UnitPicture {
    const NodeGraph& graph;
    const ParameterTable& table;
    const Program& program;  // of the graph: what forward fuses shares a frame
    int unit = 0;
    std::string title;  // above it
};

// Values are plain labels with their dimensions, bold where backward reads them; nodes are boxes with their
// parameters beside them; what enters from other units or leaves for them is outside the unit's frame.
std::string dot_text(const UnitPicture& picture);

// The units with the most nodes; the one in the middle of them.
int most_telling_unit(const NodeGraph& graph);

}  // namespace speedrun
