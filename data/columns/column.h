// Columns of a batch: values per token that a model reads. The other files of this folder declare columns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/context_slice.h"

namespace speedrun {

// Meaning of a column's values.
enum class ColumnKind : uint8_t {
    token,     // token ids, inputs of the model
    position,  // positions of tokens or keys
    target,    // token ids to predict
    hash,      // rows of a table, from hashes of several tokens
};

// Longest proper prefix of each token, from longest_prefixes(). Null if no column reads it.
using PrefixTable = std::shared_ptr<const std::vector<int32_t>>;

// Layout of the rows of a batch.
struct BatchLayout {
    static constexpr int32_t kNoSeparator = -1;

    int64_t sequence_length = 0;       // S, tokens of a whole row
    int32_t separator = kNoSeparator;  // first token of each document; kNoSeparator: a row is one document
    ContextSlice part = {};            // part of each row that this rank computes
    PrefixTable prefixes = {};
};

struct Column {
    using Values = std::vector<int32_t>;

    std::string name;  // unique within a model
    ColumnKind kind = ColumnKind::token;
    int64_t rows = 0;        // size of a leading dimension, (rows, T); 0: none
    int64_t per_token = 1;   // size of a trailing dimension, (T, per_token); 1: none
    int32_t padding = 0;     // value of tokens that pad a context slice
    bool after_cut = false;  // computed from the context slice; false: from whole rows, then cut to the part
    // Storage of a column that every batch has; null: Batch::columns[name].
    Values Batch::*member = nullptr;
    // Overwrites the values. Null for a column with a member.
    std::function<void(Values&, const Batch&, const BatchLayout&)> compute = {};

    // Returns the values in a completed batch. Throws an internal error if the batch lacks the column.
    const Values& of(const Batch& batch) const;
};

// Columns that every batch has.
inline Column tokens_column() {
    return {.name = "tokens", .kind = ColumnKind::token, .member = &Batch::tokens};
}
inline Column targets_column() {
    return {.name = "targets", .kind = ColumnKind::target, .member = &Batch::targets};
}
inline Column positions_column() {
    return {.name = "positions", .kind = ColumnKind::position, .member = &Batch::positions};
}
inline Column first_key_column() {
    return {.name = "first_key", .kind = ColumnKind::position, .member = &Batch::first_key};
}

// Completes a batch with tokens and targets of whole rows: computes positions and first keys (unless present), then the
// columns; cuts all to the context slice; counts valid targets. Reuses memory. Removes columns that are not listed.
// Throws an internal error if the tokens are not rows of sequence_length.
void complete(Batch& batch, std::span<const Column> columns, const BatchLayout& layout);

}  // namespace speedrun
