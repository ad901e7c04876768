// Every parameter of a config's model, for people who port weights or a recipe.
#pragma once

#include <string>

#include "train/config/config.h"

namespace speedrun {

// A line for each, in the order of checkpoints: name, shape, type that it is computed in, type that it is kept in between steps
// (its master's), initial values, the optimizer group that steps it, and what it means. Throws as assign_groups.
std::string parameters_text(const Config& config);
// These lines as one JSON array of objects: `shape` is a list, `group` the index in optimizers.groups.
std::string parameters_json(const Config& config);

}  // namespace speedrun
