// Models that no preset has, as JSON: "parts", "fp8", "scales", "current", "composed", "injected", "networks", "places", "newest",
// "offset".
#pragma once

#include <string>

#include "tests/train/small_model.h"
#include "train/config/config.h"

namespace speedrun::testing {

// Returns the settings of "gpt2", "modern" and "recipe" over the base config of a mode. Other models: nonzero outputs.
ModelSettings settings_of_preset(const std::string& name, int64_t heads);

bool is_model_text(const std::string& name);
// untied: the head of "newest" and "offset" is untied after the first stage.
ModelConfig model_of_text(const std::string& name, int64_t heads, bool untied);

}  // namespace speedrun::testing
