// What the transformers library calls a GPT-2's parameters.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct HfName {
    std::string name;         // "transformer.h.0.attn.c_attn.weight"
    bool transposed = false;  // [inputs, outputs] there
};

// Name of a parameter of the gpt2 family; throws an internal error for any other.
HfName hf_name(const Parameter& p);

// A parameter's shape there: transposed, without the padding of the vocabulary.
std::vector<int64_t> hf_shape(const Parameter& p, const ModelConfig& model);

// True for what old files hold beside the parameters: "h.0.attn.bias", a causal mask.
bool is_hf_mask(const std::string& name);

}  // namespace speedrun
