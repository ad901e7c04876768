// What a training or validation step reads: rows of tokens and what belongs to each token.
#pragma once

#include <cstdint>
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
    // (sizes)(T) table rows of the 2-gram, 3-gram, … that ends at each token, see hash_ngrams(); empty for a
    // model that embeds none.
    std::vector<std::vector<int32_t>> ngrams = {};
    // (T) which signs the row of a token's 2-gram is multiplied by, see choose_signs(); empty for a model without signs.
    std::vector<int32_t> sign_rows = {};
    // (n)(T) the tokens after that, and the targets' prefixes, see add_further_targets(); empty for a loss of the next token
    // alone.
    std::vector<std::vector<int32_t>> further_targets = {};
    // (rows)(2C) of a rank that shares rows with others: for each chunk of a row, whoever has it, the place in the row of the
    // first key that the chunk's first token attends to.
    std::vector<int32_t> chunk_first_keys = {};
    int64_t valid_targets = 0;  // how many targets are not -1
    // Targets that count in the whole step that a training batch belongs to, over all microbatches and ranks:
    // the step's loss is the mean over them, however they are spread.
    int64_t step_targets = 0;
};

}  // namespace speedrun
