// Configs as JSON: reading with --set overrides, the resolved config.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

// Reads a config file, applies "dotted.key=value" settings (the value is JSON if it parses as JSON, else a
// string) and validates. A string "$schema" is ignored. Throws a usage error naming the key, for unknown keys
// with the nearest known one.
Config read_config(const std::string& path, const std::vector<std::string>& settings);
// Reads a config from text; `origin` is its name in messages.
Config parse_config(const std::string& text, const std::string& origin,
                    const std::vector<std::string>& settings);
// Returns the model of a preset.
ModelConfig preset_model(const std::string& preset);
// Returns every option with its resolved value as indented JSON. parse_config() of it returns the same config.
std::string config_to_json(Config config);
}  // namespace speedrun
