// What ranks that share rows or matrices send each other between the nodes of a model.
#pragma once

#include "train/model/graph/program.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

struct ValueProgram {
    const Program& program;
    const NodeGraph& graph;  // of the program
    DType real;              // the compute type
};

// The collectives of a microbatch, forward and backward, in order, those of forward nodes that backward runs again
// among them. Empty where no node needs what others have.
CollectiveRow value_collectives(const ValueProgram& of, const Mesh& mesh);

}  // namespace speedrun
