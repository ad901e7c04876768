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
};

struct ModelGraph {
    NodeGraph graph;
    ParameterTable table;
    // What a microbatch gives: ids (tokens).
    ValueId tokens, targets, positions, first_key;
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

// The parameters alone, which no shape of batch but the length of its rows changes.
ParameterTable parameters_of(const ModelConfig& config, int64_t sequence_length);

}  // namespace speedrun
