#include "data/columns/ngrams.h"

#include <fmt/format.h>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Finalizer of 64-bit MurmurHash3: every input bit affects every output bit.
uint64_t mix_bits(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

}  // namespace

void hash_ngrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> first_key,
                 int64_t n, int64_t num_rows) {
    const auto size = static_cast<int64_t>(tokens.size());
    if (out.size() != tokens.size() || first_key.size() != tokens.size() || n < 1 || num_rows < 1) {
        throw_internal("{}-grams of {} tokens with {} first keys into {} rows of {}", n, size,
                       first_key.size(), out.size(), num_rows);
    }
    for (int64_t t = 0; t < size; ++t) {
        uint64_t hash = static_cast<uint64_t>(n);
        for (int64_t back = 0; back < n; ++back) {
            const bool visible = t - back >= first_key[t];
            hash = mix_bits(hash + 0x9e3779b97f4a7c15ULL + (visible ? uint64_t(tokens[t - back]) + 1 : 0));
        }
        out[t] = static_cast<int32_t>(hash % static_cast<uint64_t>(num_rows));
    }
}

void hash_bigrams(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t num_rows) {
    if (out.size() != tokens.size() || positions.size() != tokens.size() || num_rows < 2)
        throw_internal("bigrams of {} tokens with {} positions into {} rows of {}", tokens.size(),
                       positions.size(), out.size(), num_rows);
    const int64_t others = num_rows - 1;
    for (size_t t = 0; t < tokens.size(); ++t) {
        if (positions[t] == 0) {
            out[t] = static_cast<int32_t>(others);
            continue;
        }
        const uint32_t hash =
            36313u * static_cast<uint32_t>(tokens[t]) ^ 27191u * static_cast<uint32_t>(tokens[t - 1]);
        const int64_t remainder = int64_t{static_cast<int32_t>(hash)} % others;
        out[t] = static_cast<int32_t>(remainder < 0 ? remainder + others : remainder);
    }
}

void choose_signs(std::span<int32_t> out, std::span<const int32_t> tokens, std::span<const int32_t> positions,
                  int64_t sign_rows) {
    if (out.size() != tokens.size() || positions.size() != tokens.size() || sign_rows < 1)
        throw_internal("signs of {} tokens with {} positions from {} rows into {}", tokens.size(),
                       positions.size(), sign_rows, out.size());
    for (size_t t = 0; t < tokens.size(); ++t)
        out[t] = positions[t] == 0 ? 0 : static_cast<int32_t>((tokens[t] ^ tokens[t - 1]) % sign_rows);
}

std::vector<Column> ngram_columns(const NgramTable& table) {
    std::vector<Column> columns;
    for (int64_t n = 2; n <= table.max_ngram; ++n)
        columns.push_back(
            {.name = fmt::format("{}-grams", n),
             .kind = ColumnKind::hash,
             .compute = [table, n](Column::Values& rows, const Batch& batch, const BatchLayout&) {
                 rows.resize(batch.tokens.size());
                 if (table.hash == NgramHash::products)
                     hash_bigrams(rows, batch.tokens, batch.positions, table.num_rows);
                 else
                     hash_ngrams(rows, batch.tokens, batch.first_key, n, table.num_rows);
             }});
    return columns;
}

Column sign_rows_column(const NgramTable& table) {
    return {.name = "sign rows",
            .kind = ColumnKind::hash,
            .compute = [table](Column::Values& rows, const Batch& batch, const BatchLayout&) {
                rows.resize(batch.tokens.size());
                choose_signs(rows, batch.tokens, batch.positions, table.sign_rows);
            }};
}

}  // namespace speedrun
