// Context parallelism: each rank computes two chunks of every row, one from each half. Under causal attention, early
// tokens see few keys and late ones many, so all ranks have about equal work.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Part of rank c of C. If C > 1, a row of S tokens is cut into 2C chunks of ⌈S/2C⌉ tokens, and rank c has chunks c and
// 2C−1−c (Grattafiori et al. 2024, "The Llama 3 herd of models", section 3.3.2). The last chunks may be shorter or empty
// and are padded. If C = 1, the rank has the whole row.
struct ContextSlice {
    int size = 1, index = 0;  // C, c

    bool operator==(const ContextSlice&) const = default;
    int64_t chunk_length(int64_t sequence_length) const {
        const int64_t chunks = 2 * int64_t{size};
        return size == 1 ? sequence_length : (sequence_length + chunks - 1) / chunks;
    }
    // Returns the number of tokens of a row on each rank, including padding.
    int64_t local_length(int64_t sequence_length) const {
        return size == 1 ? sequence_length : 2 * chunk_length(sequence_length);
    }
    // Returns the position in the row of each token of this rank, ascending; −1 for padding.
    std::vector<int64_t> places(int64_t sequence_length) const;
    // Padding in row r has the value padding + r · padding_by_row.
    struct Cut {
        int64_t sequence_length, padding, padding_by_row = 0;
    };
    // Selects this rank's tokens from values of whole rows, one value per token.
    void cut(std::vector<int32_t>& values, const Cut& how) const;
    ContextSlice of(int other) const { return {.size = size, .index = other}; }
};

}  // namespace speedrun
