// What hf_gpt2.cpp needs of hf_config.cpp beside hf_gpt2.h.
#pragma once

#include <string>

#include "train/hf/hf_gpt2.h"

namespace speedrun {

// Every key of the config that makes the model something else than a GPT-2, with value and expected value;
// empty if there is none.
std::string gpt2_problems(const ModelConfig& model);

void write_hf_config(const std::string& path, const ModelConfig& model, int64_t num_positions,
                     const HfExport& options);

}  // namespace speedrun
