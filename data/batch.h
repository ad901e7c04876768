// What a training or validation step reads: rows of tokens and what belongs to each token.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedrun {

// Rows of sequence_length (S) tokens, flattened: T = rows * S. Of a rank that shares rows with others it holds the
// rank's part of each (context_part.h).
struct Batch {
    std::vector<int32_t> tokens;     // (T)
    std::vector<int32_t> targets;    // (T) the token that follows, -1 = not counted in the loss
    std::vector<int32_t> positions;  // (T) index within the row, 0 … S-1
    // (T) index into this batch of the first token that token i may attend to: the most recent separator at
    // or before i in its row, else (or without document mask) the row's first token. One array for rows and
    // documents: token i attends to first_key[i] … i.
    std::vector<int32_t> first_key;
    // (rows)(2C) of a rank that shares rows with others: for each chunk of a row, on any rank, the place in the row of the
    // first key that the chunk's first token attends to.
    std::vector<int32_t> chunk_first_keys = {};
    // Further columns by name (columns/column.h).
    std::map<std::string, std::vector<int32_t>> columns = {};
    int64_t valid_targets = 0;  // how many targets are not -1
    // Targets that count in the whole step that a training batch belongs to, over all microbatches and ranks:
    // the step's loss is the mean over them, however they are spread.
    int64_t step_targets = 0;
};

}  // namespace speedrun
