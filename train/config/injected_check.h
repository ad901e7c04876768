// Is what a model adds from other places there, and are its factors' names?
#pragma once

#include "train/config/model_parts.h"

namespace speedrun {

// Of mixes, values, joins and model.output, but not their tables. Throws a usage error with key and values.
void check_injected_places(const ModelParts& parts);

}  // namespace speedrun
