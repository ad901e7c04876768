// Is what a model adds from other places there, and are its factors' names?
#pragma once

#include "train/config/model_parts.h"

namespace speedrun {

// Checks what mixes, values, joins and model.output add, but not its tables. Throws a usage error with key and values.
void check_injected_places(const ModelParts& parts);

}  // namespace speedrun
