// Optimizer groups of a config: which group takes which parameter.
#pragma once

#include <vector>

#include "train/optim/optimizers.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

// The group index of each parameter: the first group with a pattern (shell wildcards) that matches its name.
// Throws a usage error naming every parameter that no group takes, a group that takes none, and a vector
// given to an optimizer of matrices.
std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config);

}  // namespace speedrun
