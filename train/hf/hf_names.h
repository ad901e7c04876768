// Names of a GPT-2's parameters in the transformers library.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct HfName {
    std::string name;         // "transformer.h.0.attn.c_attn.weight"
    bool transposed = false;  // stored as [inputs, outputs]
};

// Returns the library's name of a parameter of the gpt2 family; internal error for any other parameter.
HfName hf_name(const Parameter& p);

// Returns a parameter's shape in the library: transposed if needed, without vocabulary padding.
std::vector<int64_t> hf_shape(const Parameter& p, const ModelConfig& model);

// True for additional tensors of old files: "h.0.attn.bias", a causal mask.
bool is_hf_mask(const std::string& name);

}  // namespace speedrun
