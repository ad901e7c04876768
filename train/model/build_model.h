// The transformer, written as a graph: one description, two families (see ModelConfig).
#pragma once

#include <optional>
#include <vector>

#include "data/kept_keys.h"
#include "train/config/config.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/head.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct BatchShape {
    int64_t tokens = 0, sequence_length = 0;  // of a microbatch; so many tokens in rows of this length
    int64_t longest_sequence = 0;             // that the model has positions for; 0: sequence_length
    ContextPart part = {};                    // of every row, that the model computes
    TensorPart tensor = {};                   // of matrices, likewise

    bool operator==(const BatchShape&) const = default;
    int64_t num_positions() const { return longest_sequence > 0 ? longest_sequence : sequence_length; }
    int64_t local_length() const { return part.local_length(sequence_length); }
    int64_t local_tokens() const { return tokens / sequence_length * local_length(); }
    int64_t own_tokens() const { return tensor.sequence ? local_tokens() / tensor.size : local_tokens(); }
};

// What the tokens of a part of rows see of keys that are there of each row: the last, and the first.
struct KeyPlaces {
    int64_t window;  // of the attention that reads them
    KeptKeys kept;
    ValueId place = kNoValue, first_key = kNoValue;  // ids (tokens), of the batch
};

// Ids of rows of a table of which this rank has `count` rows from `first` on: counted from there, and `count` for those
// of other ranks.
struct OwnRows {
    ValueId own;
    int64_t first, count;
};

// Ids with which a table is looked up whose gradient ranks exchange as rows (TableConfig::exchange).
struct RowIds {
    ParameterId table;
    ValueId ids;
    bool operator==(const RowIds&) const = default;
};

// What a microbatch gives attention in pairs of heads, for which a token is two rows: ids (tokens, 2).
struct PairedRows {
    ValueId positions;  // 2p and 2p + 1 of a token at p: of its heads of even and of odd number
    ValueId first_key;  // the first visible of all such rows, of each
};

struct ModelGraph {
    NodeGraph graph;
    ParameterTable table;
    // What a microbatch gives: ids (tokens); of a loss with weights, targets (K, tokens) and weights f32 (K).
    ValueId tokens, targets, positions, first_key, loss_weights = kNoValue;
    std::vector<ValueId> ngrams;        // rows of 2-grams, 3-grams, …
    ValueId sign_rows = kNoValue;       // which signs a table of 2-grams is read with
    std::optional<OwnRows> own_tokens;  // where tables of tokens are shared: which are rows of this rank
    std::vector<RowIds> row_ids;        // each pair once
    std::optional<PairedRows> paired;
    std::vector<KeyPlaces> key_places;   // one per window, under context parallelism
    ParameterId resting = kNoParameter;  // that no node of this stage uses (Parameter::copy_of)
    const Head* head;                    // the last node
    ValueId losses;                      // f32 (tokens)
};

struct ModelOptions {
    bool documents = true;   // without, first_key is the start of each token's row
    int64_t logit_rows = 0;  // of the head's product at a time
};

// Units: the embeddings, each block, the head with its norm.
ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options);

// The parameters alone, the same in all stages: no shape of batch but the length of the longest rows changes them. Whole
// ones, or what a rank of the tensor axis has of them.
ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence,
                             const TensorPart& tensor = {});

}  // namespace speedrun
