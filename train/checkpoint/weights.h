// The model's weights as a safetensors file: f32 masters, by name.
#pragma once

#include <functional>
#include <string>

#include "train/comm/communicator.h"
#include "train/sharding/parameter_store.h"

namespace speedrun {

// Copies the f32 values of a parameter to the host and waits for them.
using ReadMaster = std::function<void(const Parameter& p, float* host)>;

// Reads all parameters and writes folder/model.safetensors; the folder is made if it is not there. world: all of its
// ranks call this, the first one writes, and an error is a JointError; null: one rank alone.
void save_weights(const std::string& folder, const ParameterTable& table, const ReadMaster& read,
                  World* world = nullptr);

// Throws a data error naming every tensor that is missing, unknown or of another shape than the table's.
void load_weights(const std::string& folder, const ParameterTable& table, ParameterStore& parameters);
// Does that for a file of any name, not a folder's model.safetensors.
void load_weights_file(const std::string& path, const ParameterTable& table, ParameterStore& parameters);

}  // namespace speedrun
