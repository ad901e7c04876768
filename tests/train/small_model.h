// Models of few parameters, of either family.
#pragma once

#include <string>

#include "train/config/config.h"

namespace speedrun::testing {

struct ModelSizes {
    int64_t layers, width, heads, vocabulary;
};

inline ModelConfig model_of(const std::string& preset, const ModelSizes& sizes) {
    ModelConfig model;
    model.preset = preset;
    model.apply_preset();
    model.num_layers = sizes.layers;
    model.model_dim = sizes.width;
    model.num_heads = sizes.heads;
    model.vocab_size = sizes.vocabulary;
    return model;
}

}  // namespace speedrun::testing
