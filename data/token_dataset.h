// Tokens of a list of shard files, checked against the vocabulary when read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/shard.h"

namespace speedrun {

// Owns the open shards of one split. Immutable, and therefore safe for concurrent reads.
class TokenDataset {
  public:
    // Opens the files, in this order. vocab_size: exclusive bound of all tokens (may exceed the tokenizer's, for a
    // padded vocabulary). separator: token between documents; place: its side of them. Throws a usage error if the
    // separator exceeds the vocabulary, a data error without files or for a damaged shard. Token values are checked by
    // each read: a check of all would read every byte before the first step.
    TokenDataset(const std::vector<std::string>& files, int32_t vocab_size, int32_t separator,
                 SeparatorPosition place = SeparatorPosition::before);

    int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
    const Shard& shard(int64_t index) const { return shards_[static_cast<size_t>(index)]; }
    // Index of a shard's first token in the stream of all shards; for num_shards(): number of all tokens.
    int64_t first_token(int64_t shard) const { return first_token_[static_cast<size_t>(shard)]; }
    int64_t num_tokens() const { return first_token_.back(); }
    int32_t vocab_size() const { return vocab_size_; }
    int32_t separator() const { return separator_; }
    SeparatorPosition separator_position() const { return place_; }

    // Reads tokens first … first+out.size()-1 of the stream of all shards. Throws a data error with file, token index,
    // value and limit for the first token ≥ vocab_size, or the error of Shard::read(); an internal error if the range
    // exceeds the stream.
    void read(int64_t first, std::span<uint16_t> out) const;

  private:
    void read_of(const Shard& shard, int64_t first, std::span<uint16_t> out) const;

    std::vector<Shard> shards_;
    std::vector<int64_t> first_token_;  // (num_shards + 1)
    int32_t vocab_size_;
    int32_t separator_;
    SeparatorPosition place_;
};

}  // namespace speedrun
