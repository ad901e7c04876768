// Lists every parameter of a config's model, for porting weights or a recipe.
#pragma once

#include <string>

#include "train/config/config.h"

namespace speedrun {

// Returns one line per parameter, in checkpoint order: name, shape, compute dtype, dtype between steps (the master's), initial
// values, optimizer group, meaning. Throws as assign_groups.
std::string parameters_text(const Config& config);
// Returns these lines as one JSON array of objects: `shape` is a list, `group` the index in optimizers.groups.
std::string parameters_json(const Config& config);

}  // namespace speedrun
