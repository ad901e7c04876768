// Hashed n-grams: rows of embedding tables for the last n tokens rather than the last one. A short text's
// frequent word pieces are then known from the first layer on, without attention having to assemble them.
#pragma once

#include <cstdint>
#include <span>

namespace speedrun {

// out[t] = the table row, 0 … num_rows-1, of tokens t-n+1 … t. Tokens before first_key[t] (another row or,
// with document masks, another document) count as absent, which hashes differently from every token, so that
// a row depends on nothing that attention could not see. The same n-gram has the same row everywhere and in
// every build; different ones may share a row. All spans have one length; n ≥ 1, num_rows ≥ 1, else an
// internal error.
void hash_ngrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> first_key,
                 int64_t n, int64_t num_rows);

}  // namespace speedrun
