// Configs of records. Older ones hold removed keys of `model`.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// Returns the config of a record, with settings as in parse_config(). Replaces the switches of presets by parts; a switch that no
// record of this repository had stays a usage error.
Config recorded_config(const std::string& text, const std::string& origin,
                       const std::vector<std::string>& settings = {});

}  // namespace speedrun
