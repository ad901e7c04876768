// GPT-2 as the transformers library stores it: a folder with config.json and model.safetensors, in the names
// of its GPT2LMHeadModel. Its linear layers are Conv1D, matrices of [inputs, outputs], where ours are
// [outputs, inputs]; its embedding has a row per token, ours is padded.
#pragma once

#include <string>
#include <vector>

#include "train/checkpoint/weights.h"
#include "train/config/config.h"

namespace speedrun {

struct HfGpt2 {
    ModelConfig model;          // the gpt2 family, with the sizes of config.json
    int64_t num_positions = 0;  // the longest sequence_length
};

// Reads folder/config.json. Throws a data error that names key, expected and actual value where it is not a
// GPT-2 or one that this program does not compute: another activation than GELU's tanh form, another epsilon.
HfGpt2 read_hf_config(const std::string& folder);

// Reads folder/model.safetensors (f32 or bf16) as f32 values by parameter id. Rows of padding are 0,
// positions from sequence_length on are left out; the library's attention masks are skipped. Throws a data
// error that names every tensor that is missing, unknown, or of another shape or type.
std::vector<std::vector<float>> read_hf_weights(const std::string& folder, const ParameterTable& table,
                                                const ModelConfig& model);

// Throws a usage error that names each key of the config that does not fit the model in this folder.
void expect_hf_fits(const std::string& folder, const ModelConfig& model, int64_t sequence_length);

struct HfExport {
    DType dtype = DType::f32;  // or bf16, rounded to nearest even
    int64_t separator = -1;    // the token that ends a document; -1: unknown
};

// Writes a new folder that from_pretrained() and read_hf_weights() take. Throws a usage error that names each
// key that makes the model something else than a GPT-2, or if the folder is there already.
void write_hf_gpt2(const std::string& folder, const ModelConfig& model, const ParameterTable& table,
                   const ReadMaster& read, const HfExport& options);

}  // namespace speedrun
