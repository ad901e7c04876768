// The config.json of a GPT-2 in the transformers library's format; after an "i" the index of its weight files.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "tests/temp_dir.h"
#include "train/hf/hf_gpt2.h"
#include "train/hf/hf_index.h"

void speedrun::fuzz::parse(std::string_view input) {
    static const TempDir folder;
    if (input.starts_with('i')) {
        folder.write("index.json", input.substr(1));
        for (const auto& [tensor, file] : read_hf_index(folder.file("index.json")))
            if (file.empty() || file.find('/') != std::string::npos) std::abort();
        return;
    }
    folder.write("config.json", input);
    const ModelConfig model = read_hf_config(folder.path()).model;
    const LayerConfig& layer = model.parts.layers.each;
    if (layer.mlp->ratio < 1 || model.model_dim % layer.attention->heads != 0) std::abort();
}
