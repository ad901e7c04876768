// The transformer as a graph: one builder for all presets (ModelConfig).
#pragma once

#include "train/config/config.h"
#include "train/model/model_graph.h"

namespace speedrun {

// Units: the embeddings, each block, the head with its norm.
ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options);

// The parameters alone: whole ones, or the part of one rank of the tensor axis. They are the same in all stages and depend on
// no shape of the batch but the longest sequence.
ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence,
                             const TensorPart& tensor = {});

}  // namespace speedrun
