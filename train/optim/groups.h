// Optimizer groups of a config: which group takes which parameter.
#pragma once

#include <vector>

#include "train/optim/optimizers.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

// Returns the group index of each parameter: the first group with a pattern (shell wildcards) that matches its name. Throws a
// usage error that names every parameter without a group. Throws one for a group without parameters, and for a vector in a
// group of an optimizer of matrices.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

}  // namespace speedrun
