// Presets: `model` sections, embedded in the program, that a config starts from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace speedrun {

// A file of train/model/presets.
struct Preset {
    const char *name, *text;
};
const std::vector<Preset>& presets();  // preset_list.cmake

inline constexpr const char *kDefaultPreset = "modern", *kNoPreset = "none";

// Returns the words of model.preset.
std::vector<std::string> preset_words();

// Merges the section over its preset and sets its "preset" to "none": objects merge by key, other values replace, and a
// table of null is left out. Leaves a value that is no object, or an unknown preset, to the reader.
void merge_over_preset(nlohmann::ordered_json& model);

}  // namespace speedrun
