// Functions of hf_config.cpp that hf_gpt2.cpp uses, in addition to hf_gpt2.h.
#pragma once

#include <string>

#include "train/hf/hf_gpt2.h"

namespace speedrun {

void write_hf_config(const std::string& path, const ModelConfig& model, int64_t num_positions,
                     const HfExport& options);

}  // namespace speedrun
