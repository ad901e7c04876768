// The config.json of a GPT-2 in the transformers library's format.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "tests/temp_dir.h"
#include "train/hf/hf_gpt2.h"

void speedrun::fuzz::parse(std::string_view input) {
    static const TempDir folder;
    folder.write("config.json", input);
    const ModelConfig model = read_hf_config(folder.path()).model;
    const LayerConfig& layer = model.parts.layers.each;
    if (layer.mlp->ratio < 1 || model.model_dim % layer.attention->heads != 0) std::abort();
}
