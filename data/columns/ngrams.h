// Hashed n-grams: rows of embedding tables for the last n tokens rather than the last one. A short text's
// frequent word pieces are then known from the first layer on, without attention having to assemble them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/columns/column.h"

namespace speedrun {

// mixed: every token of the n-gram, and none before the first key, reaches all bits. products: of bigrams, the xor of a
// product of each token, across documents.
enum class NgramHash : uint8_t { mixed, products };

// Which n-grams a model embeds.
struct NgramTable {
    int64_t max_ngram = 0;  // those of 2 … max_ngram tokens; below 2: none
    int64_t num_rows = 0;   // of the table that all sizes share
    NgramHash hash = NgramHash::mixed;
    int64_t sign_rows = 0;  // rows of signs that the table's rows are multiplied by; 0: they are not

    int64_t num_sizes() const { return max_ngram < 2 ? 0 : max_ngram - 1; }
};

// out[t] = the table row, 0 … num_rows-1, of tokens t-n+1 … t. Tokens before first_key[t] (another row or,
// with document masks, another document) count as absent, which hashes differently from every token, so that
// a row depends on nothing that attention could not see. The same n-gram has the same row everywhere and in
// every build; different ones may share a row. All spans have one length; n ≥ 1, num_rows ≥ 1, else an
// internal error.
void hash_ngrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> first_key,
                 int64_t n, int64_t num_rows);

// out[t] = ((36313·tokens[t]) xor (27191·tokens[t−1])) mod (num_rows − 1), in 32 bits with a sign that wrap around, the
// remainder from 0 on; the table's last row for the first token of a row of the batch. Source: the bigram table of
// modded-nanogpt, Jordan et al.
void hash_bigrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t num_rows);

// out[t] = (tokens[t] xor tokens[t−1]) mod sign_rows, 0 for the first token of a row of the batch.
void choose_signs(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t sign_rows);

// Columns "2-grams", "3-grams", …: rows of every size of the table.
std::vector<Column> ngram_columns(const NgramTable& table);
// Column "sign rows" of a table with signs.
Column sign_rows_column(const NgramTable& table);

}  // namespace speedrun
