// Models with few parameters for both presets, and optimizer groups for them.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun::testing {

struct ModelSizes {
    int64_t layers, width, heads, vocabulary;
};

inline ModelConfig model_of(Family preset, const ModelSizes& sizes) {
    ModelConfig model;
    model.preset = preset;
    model.apply_preset();
    model.num_layers = sizes.layers;
    model.model_dim = sizes.width;
    model.num_heads = sizes.heads;
    model.vocab_size = sizes.vocabulary;
    return model;
}

inline ModelConfig tiny_model(Family preset = Family::modern) {
    return model_of(preset, {.layers = 2, .width = 16, .heads = 2, .vocabulary = 40});
}

inline OptimizerGroupConfig optimizer_group(OptimizerKind type, const std::vector<std::string>& params) {
    OptimizerGroupConfig group;
    group.type = type;
    group.params = params;
    return group;
}

inline OptimizersConfig muon_and_adamw() {
    OptimizersConfig config;
    config.groups = {optimizer_group(OptimizerKind::muon, {"blocks.*.weight"}),
                     optimizer_group(OptimizerKind::adamw, {"*"})};
    return config;
}

}  // namespace speedrun::testing
