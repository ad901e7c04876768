// What ranks that share rows send each other between the nodes of a model.
#pragma once

#include "train/model/graph/program.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// The collectives of a microbatch, forward and backward, in order, those of forward nodes that backward runs again
// among them. Empty where no node needs what others have.
CollectiveRow value_collectives(const Program& program, const Mesh& mesh, DType real);

}  // namespace speedrun
