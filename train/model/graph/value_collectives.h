// Collectives between the nodes of a model, among ranks that share rows or matrices.
#pragma once

#include "train/model/graph/program.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

struct ValueProgram {
    const Program& program;
    const NodeGraph& graph;  // graph of the program
    DType compute_dtype;     // compute dtype
};

// Returns the collectives of a microbatch, forward and backward, in order, including those of recomputed nodes. Empty
// if no node exchanges values.
BucketCollectives value_collectives(const ValueProgram& of, const Mesh& mesh);

}  // namespace speedrun
