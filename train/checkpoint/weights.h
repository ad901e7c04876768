// The model's weights as a safetensors file: f32 masters, by name.
#pragma once

#include <string>

#include "train/model/parameter_store.h"

namespace speedrun {

// Synchronises, then writes folder/model.safetensors; the folder is made if it is not there.
void save_weights(const std::string& folder, const ParameterTable& table, ParameterStore& parameters,
                  Runtime& runtime);

// Throws a data error naming every tensor that is missing, unknown or of another shape than the table's.
void load_weights(const std::string& folder, const ParameterTable& table, ParameterStore& parameters,
                  Runtime& runtime);

}  // namespace speedrun
