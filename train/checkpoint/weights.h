// The model's weights as a safetensors file: f32 masters, by name.
#pragma once

#include <functional>
#include <string>

#include "train/comm/communicator.h"
#include "train/sharding/parameter_store.h"

namespace speedrun {

// Copies the f32 values of a parameter to the host and waits for them.
using ReadMaster = std::function<void(const Parameter& p, float* host)>;

// Reads all parameters and writes folder/model.safetensors; creates the folder. world: all of its ranks call this, rank
// 0 writes, and an error is a JointError. null: a single rank.
void save_weights(const std::string& folder, const ParameterTable& table, const ReadMaster& read,
                  World* world = nullptr);

// Throws a data error that lists every tensor that is missing, unknown or has another shape.
void load_weights(const std::string& folder, const ParameterTable& table, ParameterStore& parameters);
// As load_weights(), for a file of any name.
void load_weights_file(const std::string& path, const ParameterTable& table, ParameterStore& parameters);

}  // namespace speedrun
