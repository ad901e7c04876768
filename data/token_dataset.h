// The tokens of a list of shard files, checked against the vocabulary when they are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/shard.h"

namespace speedrun {

// Owns the open shards of one split. Const, and therefore safe to read from many threads.
class TokenDataset {
  public:
    // Opens the files, in this order. vocab_size: every token must be below it (it may exceed the tokenizer's, for a padded
    // vocabulary). separator: the token between documents; place: its side of them in the files. Throws a usage error if the
    // separator does not fit the vocabulary, a data error if there is no file or a shard is damaged. Token values are
    // checked later, read by read, because checking all of them would read every byte before step one.
    TokenDataset(const std::vector<std::string>& files, int32_t vocab_size, int32_t separator,
                 SeparatorPlace place = SeparatorPlace::before);

    int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
    const Shard& shard(int64_t index) const { return shards_[static_cast<size_t>(index)]; }
    // Index of a shard's first token in the stream of all shards; of num_shards(): the number of all tokens.
    int64_t first_token(int64_t shard) const { return first_token_[static_cast<size_t>(shard)]; }
    int64_t num_tokens() const { return first_token_.back(); }
    int32_t vocab_size() const { return vocab_size_; }
    int32_t separator() const { return separator_; }
    SeparatorPlace separator_place() const { return place_; }

    // Reads tokens first … first+out.size()-1 of all shards taken as one stream. Throws a data error naming file, token
    // index, value and limit at the first token ≥ vocab_size, or the error of Shard::read(); an internal error if the range
    // leaves the stream.
    void read(int64_t first, std::span<uint16_t> out) const;

  private:
    void read_of(const Shard& shard, int64_t first, std::span<uint16_t> out) const;

    std::vector<Shard> shards_;
    std::vector<int64_t> first_token_;  // (num_shards + 1)
    int32_t vocab_size_;
    int32_t separator_;
    SeparatorPlace place_;
};

}  // namespace speedrun
