// The config.json of a GPT-2 in the transformers library's format.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "tests/temp_dir.h"
#include "train/hf/hf_gpt2.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const speedrun::TempDir folder;
    folder.write("config.json", {reinterpret_cast<const char*>(data), size});
    speedrun::fuzz::expect_clean([&] {
        const speedrun::ModelConfig model = speedrun::read_hf_config(folder.path()).model;
        const speedrun::LayerConfig& layer = model.parts.layers.each;
        if (layer.mlp->ratio < 1 || model.model_dim % layer.attention->heads != 0) std::abort();
    });
    return 0;
}
