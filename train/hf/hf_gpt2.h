// GPT-2 in the format of the transformers library: a folder with config.json and model.safetensors, with the names of its
// GPT2LMHeadModel. Its linear layers are Conv1D with matrices [inputs, outputs]; this program's are [outputs, inputs]. Its
// embedding has a row per token; this program's is padded.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/weights.h"
#include "train/config/config.h"

namespace speedrun {

struct HfGpt2 {
    ModelConfig model;          // the gpt2 family, with the sizes of config.json
    int64_t num_positions = 0;  // maximum sequence_length
};

// Reads folder/config.json. Throws a data error that names key, expected and actual value if the model is not a GPT-2 or is not
// supported, such as another activation than GELU.
HfGpt2 read_hf_config(const std::string& folder);

// Reads folder/model.safetensors, or the files of model.safetensors.index.json (f32, bf16 or f16), as f32 values by parameter id. Padding rows are 0, positions from
// sequence_length on are dropped, and the library's attention masks are skipped. Throws a data error that names every tensor
// that is missing, unknown, or of another shape or type.
std::vector<std::vector<float>> read_hf_weights(const std::string& folder, const ParameterTable& table,
                                                const ModelConfig& model);

// Throws a usage error that names each key of the config that differs from the model in this folder.
void expect_hf_fits(const std::string& folder, const ModelConfig& model, int64_t sequence_length);

struct HfExport {
    DType dtype = DType::f32;  // f32, or bf16 rounded to nearest even
    int64_t separator = -1;    // token that ends a document; -1: unknown
};

// Returns every key of the config that GPT-2 does not support, with its value and the expected value; empty if none.
std::string gpt2_problems(const ModelConfig& model);

// Writes a new folder for from_pretrained() and read_hf_weights(). Throws a usage error for gpt2_problems(), or if the folder
// exists, and Error(diverged) for values that are not finite.
void write_hf_gpt2(const std::string& folder, const ModelConfig& model, const ParameterTable& table,
                   const ReadMaster& read, const HfExport& options);

}  // namespace speedrun
