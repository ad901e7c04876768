// Reads the fields of a config from JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/config/config.h"

namespace speedrun {

// Sets every field that the object names and keeps the others. Throws a usage error, with key, value and expected type or
// range, for a value of the wrong type or out of range. The error for an unknown key suggests the nearest known one.
void read_fields(const nlohmann::ordered_json& root, Config& config);

}  // namespace speedrun
