// The transformer as a graph: one builder for all presets (ModelConfig).
#pragma once

#include "train/config/config.h"
#include "train/model/model_graph.h"

namespace speedrun {

// Units: the embeddings, each block, the head with its norm.
ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options);

// Declares only the parameters: whole, or one tensor rank's part. They are equal in all stages and, of the batch,
// depend only on the longest sequence.
ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence,
                             const TensorSlice& tensor = {});

}  // namespace speedrun
