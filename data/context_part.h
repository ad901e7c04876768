// Sharing of sequences among ranks: each rank takes two chunks of every row, one from the front and one from the back.
// All ranks then have about the same number of keys to attend to.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Part of one of C ranks. A row of S tokens is cut into 2C chunks of ⌈S/2C⌉ tokens; the last ones may be shorter. Rank
// c takes chunks c and 2C−1−c (Grattafiori et al. 2024, "The Llama 3 herd of models", section 3.3.2). Every rank has
// 2⌈S/2C⌉ tokens per row, including padding at the end of short chunks.
struct ContextPart {
    int size = 1, index = 0;  // C, c

    bool operator==(const ContextPart&) const = default;
    int64_t chunk_length(int64_t sequence_length) const {
        const int64_t chunks = 2 * int64_t{size};
        return size == 1 ? sequence_length : (sequence_length + chunks - 1) / chunks;
    }
    // Tokens of a row on one rank, including padding.
    int64_t local_length(int64_t sequence_length) const {
        return size == 1 ? sequence_length : 2 * chunk_length(sequence_length);
    }
    // Returns the positions in the row of this rank's tokens, ascending; −1: padding.
    std::vector<int64_t> places(int64_t sequence_length) const;
    // Padding of a cut: padding + r · padding_by_row in row r.
    struct Cut {
        int64_t sequence_length, padding, padding_by_row = 0;
    };
    // Cuts values of whole rows, one per token, to this rank's tokens.
    void cut(std::vector<int32_t>& values, const Cut& how) const;
    ContextPart of(int other) const { return {.size = size, .index = other}; }
};

}  // namespace speedrun
