// Hashed n-grams: rows of embedding tables indexed by the last n tokens instead of the last one. The first layer then
// has embeddings of frequent multi-token words without assembling them by attention.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/columns/column.h"

namespace speedrun {

// mixed: all bits depend on every token of the n-gram, excluding tokens before the first key. products: bigrams only;
// xor of one product per token, across documents.
enum class NgramHash : uint8_t { mixed, products };

// The n-grams that a model embeds.
struct NgramTable {
    int64_t max_ngram = 0;  // sizes 2 … max_ngram; below 2: none
    int64_t num_rows = 0;   // rows of the table shared by all sizes
    NgramHash hash = NgramHash::mixed;
    int64_t sign_rows = 0;  // rows of signs that multiply the table's rows; 0: no signs

    int64_t num_sizes() const { return max_ngram < 2 ? 0 : max_ngram - 1; }
};

// out[t] = table row, 0 … num_rows-1, of tokens t-n+1 … t. Tokens before first_key[t] (in another row or, with document
// masks, another document) hash as absent, unlike any token. A row thus depends only on tokens visible to attention.
// Equal n-grams have equal rows in every build; different ones may collide. All spans have one length; n ≥ 1, num_rows
// ≥ 1, else an internal error.
void hash_ngrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> first_key,
                 int64_t n, int64_t num_rows);

// out[t] = ((36313·tokens[t]) xor (27191·tokens[t−1])) mod (num_rows − 1), in wrapping signed 32-bit arithmetic, with a
// non-negative remainder. The first token of a row of the batch has the table's last row. Source: the bigram table of
// modded-nanogpt, Jordan et al.
void hash_bigrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t num_rows);

// out[t] = (tokens[t] xor tokens[t−1]) mod sign_rows, 0 for the first token of a row of the batch.
void choose_signs(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t sign_rows);

// Columns "2-grams", "3-grams", …: table rows for each size.
std::vector<Column> ngram_columns(const NgramTable& table);
// Column "sign rows" for a table with signs.
Column sign_rows_column(const NgramTable& table);

}  // namespace speedrun
