// The graph of one model, the shape of the batch that it is written for, and the batch columns that it reads.
#pragma once

#include <optional>
#include <vector>

#include "data/kept_keys.h"
#include "train/config/choices.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/head.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct BatchShape {
    int64_t tokens = 0, sequence_length = 0;  // per microbatch; tokens is a multiple of sequence_length
    int64_t longest_sequence = 0;             // rows of a position table; 0: sequence_length
    ContextPart part = {};                    // share of every row on this context rank
    TensorPart tensor = {};                              // share of every matrix on this tensor rank

    bool operator==(const BatchShape&) const = default;
    int64_t num_positions() const { return longest_sequence > 0 ? longest_sequence : sequence_length; }
    int64_t local_length() const { return part.local_length(sequence_length); }
    int64_t local_tokens() const { return tokens / sequence_length * local_length(); }
    int64_t own_tokens() const { return tensor.sequence ? local_tokens() / tensor.size : local_tokens(); }
};

// Keys that the queries of a context part see: the last and the first, by token.
struct KeyPlaces {
    int64_t window;  // window of the attention; 0: all keys
    KeptKeys kept;
    ValueId place = kNoValue, first_key = kNoValue;  // batch columns: ids (tokens)
};

// Token ids for a rank that stores `count` rows of a table, from row `first`: id - first, or `count` for rows of other ranks.
struct OwnRows {
    ValueId own;
    int64_t first, count;
};

// A table with a gradient that is exchanged by rows (TableConfig::exchange), and ids that look it up.
struct RowIds {
    ParameterId table;
    ValueId ids;
    bool operator==(const RowIds&) const = default;
};

// Batch columns of attention in pairs of heads, where a token is two rows: ids (tokens, 2).
struct PairedRows {
    ValueId positions;  // 2p for even heads and 2p + 1 for odd ones, p the position of the token
    ValueId first_key;  // first visible row of each
};

struct ModelGraph {
    NodeGraph graph;
    ParameterTable table;
    // Batch columns: ids (tokens). Of a weighted loss, targets (K, tokens) and weights f32 (K).
    ValueId tokens, targets, positions, first_key, loss_weights = kNoValue;
    std::vector<ValueId> ngrams;        // rows of 2-grams, 3-grams, …
    ValueId sign_rows = kNoValue;       // row of signs for each 2-gram
    std::optional<OwnRows> own_tokens;  // present if the tensor axis cuts tables
    std::vector<RowIds> row_ids;        // without duplicates
    std::optional<PairedRows> paired;
    std::vector<KeyPlaces> key_places;   // context part: one entry per window
    ParameterId resting = kNoParameter;  // unused in this stage (Parameter::copy_of)
    const Head* head;                    // the last node
    ValueId losses;                      // f32 (tokens)
};

struct ModelOptions {
    bool documents = true;   // false: first_key is the start of the token's row
    int64_t logit_rows = 0;  // rows of the head's product per chunk
};

}  // namespace speedrun
