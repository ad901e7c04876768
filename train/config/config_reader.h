// The fields of a config, from JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/config/config.h"

namespace speedrun {

// Sets every field that the object names; the others stay as they are. Throws a usage error, with key, value and what
// is expected, for a value of the wrong kind or out of its limits and for a key that there is not, with the nearest.
void read_fields(const nlohmann::ordered_json& root, Config& config);

}  // namespace speedrun
