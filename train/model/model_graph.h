// The graph of one model, the shape of the batch that it is written for, and the batch columns that it reads.
#pragma once

#include <string_view>
#include <vector>

#include "data/columns/column.h"
#include "train/config/choices.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/head.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct BatchShape {
    int64_t tokens = 0, sequence_length = 0;  // per microbatch; tokens is a multiple of sequence_length
    int64_t longest_sequence = 0;             // rows of a position table; 0: sequence_length
    ContextSlice part = {};                   // share of every row on this context rank
    TensorSlice tensor = {};                  // share of every matrix on this tensor rank

    bool operator==(const BatchShape&) const = default;
    int64_t num_positions() const { return longest_sequence > 0 ? longest_sequence : sequence_length; }
    int64_t local_length() const { return part.local_length(sequence_length); }
    int64_t local_tokens() const { return tokens / sequence_length * local_length(); }
    int64_t own_tokens() const { return tensor.sequence ? local_tokens() / tensor.size : local_tokens(); }
};

// An input of the graph, written with each microbatch.
struct ColumnInput {
    Column column;
    ValueId value;
};

// A table with a gradient that is exchanged by rows (TableConfig::exchange), and ids that look it up.
struct RowIds {
    ParameterId table;
    Column column;
    bool operator==(const RowIds& other) const {
        return table == other.table && column.name == other.column.name;
    }
};

struct ModelGraph {
    NodeGraph graph;
    ParameterTable table;
    std::vector<ColumnInput> inputs;      // columns of the batch, without duplicates
    ValueId loss_weights = kNoValue;      // f32 (K) for targets (K, tokens); kNoValue: targets are (tokens)
    std::vector<RowIds> row_ids;          // tables whose gradients ranks exchange as rows, without duplicates
    ParameterId inactive = kNoParameter;  // unused in this stage (Parameter::copy_of)
    const Head* head;                     // the last node
    ValueId losses;                       // f32 (tokens)

    // Null: the graph does not read that column.
    const ColumnInput* find_input(std::string_view name) const {
        for (const ColumnInput& input : inputs)
            if (input.column.name == name) return &input;
        return nullptr;
    }
    std::vector<Column> columns() const {
        std::vector<Column> all;
        for (const ColumnInput& input : inputs) all.push_back(input.column);
        return all;
    }
};

struct ModelOptions {
    bool documents = true;   // false: first_key is the start of the token's row
    int64_t logit_rows = 0;  // rows of the head's product per chunk
};

}  // namespace speedrun
