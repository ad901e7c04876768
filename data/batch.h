// Batch: rows of tokens, and values per token, for a training or validation step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedrun {

// Rows of sequence_length (S) tokens, flattened: T = rows * S. If ranks share rows, only this rank's part of each row
// (context_part.h).
struct Batch {
    std::vector<int32_t> tokens;     // (T)
    std::vector<int32_t> targets;    // (T) next token; -1: not counted in the loss
    std::vector<int32_t> positions;  // (T) index within the row, 0 … S-1
    // (T) Index into this batch of the first token that token i may attend to: the latest separator at or before i in
    // its row, otherwise (or without document mask) the row's first token. Token i attends to first_key[i] … i, so this
    // array encodes both rows and documents.
    std::vector<int32_t> first_key;
    // (rows)(2C) If ranks share rows: for each chunk of a row, on any rank, the position in the row of the first key
    // that the chunk's first token attends to.
    std::vector<int32_t> chunk_first_keys = {};
    // Other columns by name (columns/column.h).
    std::map<std::string, std::vector<int32_t>> columns = {};
    int64_t valid_targets = 0;  // number of targets that are not -1
    // Valid targets of the training batch's whole step, over all microbatches and ranks. The step's loss is the mean
    // over them, for any distribution over batches.
    int64_t step_targets = 0;
};

}  // namespace speedrun
