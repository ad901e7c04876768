// The transformer, written as a graph: one description, two families (see ModelConfig).
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/head.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct BatchShape {
    int64_t tokens = 0, sequence_length = 0;  // of a microbatch; so many tokens in rows of this length
    int64_t longest_sequence = 0;             // that the model has positions for; 0: sequence_length

    bool operator==(const BatchShape&) const = default;
    int64_t num_positions() const { return longest_sequence > 0 ? longest_sequence : sequence_length; }
};

struct ModelGraph {
    NodeGraph graph;
    ParameterTable table;
    // What a microbatch gives: ids (tokens); of a loss with weights, targets (K, tokens) and weights f32 (K).
    ValueId tokens, targets, positions, first_key, loss_weights = kNoValue;
    std::vector<ValueId> ngrams;  // rows of 2-grams, 3-grams, …
    const Head* head;             // the last node
    ValueId losses;               // f32 (tokens)
};

struct ModelOptions {
    bool documents = true;   // without, first_key is the start of each token's row
    int64_t logit_rows = 0;  // of the head's product at a time
};

// Units: the embeddings, each block, the head with its norm.
ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options);

// The parameters alone, the same in all stages: no shape of batch but the length of the longest rows changes them.
ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence);

}  // namespace speedrun
