// Models beyond GPT-2 in the format of the transformers library: a folder with config.json, model.safetensors and Python code
// for from_pretrained(DIR, trust_remote_code=True).
#pragma once

#include <map>
#include <string>

#include "train/checkpoint/weights.h"
#include "train/config/config.h"
#include "train/hf/hf_gpt2.h"

namespace speedrun {

// Returns the text of each file of train/hf/python by its name (hf_python.cmake).
const std::map<std::string, std::string>& hf_python_files();

// Returns the parts of the model that the Python code does not have, with their keys; empty if none.
std::string hf_speedrun_problems(const ModelConfig& model);

// Writes a new folder. config: of validation (Config::in_validation). Throws a usage error for
// hf_speedrun_problems() or if the folder exists, and Error(diverged) for values that are not finite.
void write_hf_speedrun(const std::string& folder, const Config& config, const ParameterTable& table,
                       const ReadMaster& read, const HfExport& options);

}  // namespace speedrun
