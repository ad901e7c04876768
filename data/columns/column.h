// Columns of a batch: values that a model reads for each token. Every other file of this folder declares some of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/context_part.h"

namespace speedrun {

// Meaning of a column's values.
enum class ColumnKind : uint8_t {
    token,     // ids of tokens that the model sees
    position,  // places of tokens or of keys
    target,    // ids of tokens to predict
    hash,      // rows of a table, hashes of several tokens
};

// Longest proper prefix of each token, from longest_prefixes(). Null: no column reads it.
using PrefixTable = std::shared_ptr<const std::vector<int32_t>>;

// Layout of the rows of a batch.
struct BatchLayout {
    static constexpr int32_t kNoSeparator = -1;

    int64_t sequence_length = 0;       // S, tokens of a whole row
    int32_t separator = kNoSeparator;  // first token of each document; kNoSeparator: a row is one document
    ContextPart part = {};             // tokens of each row that this rank computes
    PrefixTable prefixes = {};
};

struct Column {
    using Values = std::vector<int32_t>;

    std::string name;  // unique within a model
    ColumnKind kind = ColumnKind::token;
    int64_t rows = 0;        // size of a leading dimension, (rows, T); 0: none
    int64_t per_token = 1;   // size of a trailing dimension, (T, per_token); 1: none
    int32_t padding = 0;     // value of tokens that pad a context part
    bool after_cut = false;  // computed from the context part; false: from whole rows, then cut to the part
    // Storage of a column that every batch has; null: Batch::columns[name].
    Values Batch::*member = nullptr;
    // Overwrites the values. Null for columns with a member.
    std::function<void(Values&, const Batch&, const BatchLayout&)> compute = {};

    // Values in a completed batch. Throws an internal error if the batch lacks the column.
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

// Completes a batch that has the tokens and targets of whole rows: computes positions and first keys (unless the batch has
// some), then the columns; cuts all to the context part; counts valid targets. Reuses memory. Columns that are not listed
// are removed. Throws an internal error if the tokens are not rows of sequence_length.
void complete(Batch& batch, std::span<const Column> columns, const BatchLayout& layout);

}  // namespace speedrun
