// Models that no preset has, as JSON: "parts", "fp8", "scales", "composed", "injected", "networks", "places", "newest", "offset".
#pragma once

#include <string>

#include "train/config/config.h"

namespace speedrun::testing {

bool is_model_text(const std::string& name);
// untied: the head of "newest" and "offset" is untied after the first stage.
ModelConfig model_of_text(const std::string& name, int64_t heads, bool untied);

}  // namespace speedrun::testing
