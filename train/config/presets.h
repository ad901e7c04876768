// Presets: `model` sections, embedded in the program, that a config starts from.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace speedrun {

// Returns the text of each file of train/model/presets by its stem (preset_list.cmake).
const std::map<std::string, std::string>& presets();

inline constexpr const char* kNoPreset = "none";

// Merges the section over its preset and sets its "preset" to "none": objects merge by key, other values replace, and a
// table of null is left out. Leaves a value that is no object, or an unknown preset, to the reader.
void merge_over_preset(nlohmann::ordered_json& model);

}  // namespace speedrun
