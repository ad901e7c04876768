// Which units read each parameter, and in which pass: what sharding gathers and steps by.
#pragma once

#include "train/model/graph/graph.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

// Writes them into the table (Parameter::uses), and how many units there are. Throws an internal error for a
// parameter that no node uses.
void note_parameter_uses(const NodeGraph& graph, ParameterTable& table);

}  // namespace speedrun
