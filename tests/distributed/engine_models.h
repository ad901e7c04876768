// Models of the engine's tests, as settings of a config: "gpt2", "modern", "recipe", and models that no preset has ("parts", "fp8",
// "scales", "current", "composed", "injected", "networks", "places", "newest", "offset",
// "widths", "narrow", "offset_widths").
#pragma once

#include <string>

#include "tests/train/small_model.h"

namespace speedrun::testing {

ModelSettings model_settings(const std::string& name);
// Settings of the model for a run in three stages: windows, loss weights, or a head that is untied after the first stage.
ModelSettings stage_settings(const std::string& name);

}  // namespace speedrun::testing
