// The tokens of a list of shard files, checked against the vocabulary when they are read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/shard.h"

namespace speedrun {

// Owns the mapped shards of one split. Const, and therefore safe to read from many threads.
class TokenDataset {
  public:
    // Maps the files, in this order. vocab_size: every token must be below it (it may exceed the tokenizer's,
    // for a padded vocabulary). separator: the token between documents. Throws a usage error if the separator
    // does not fit the vocabulary, a data error if there is no file or a shard is damaged. Token values are
    // checked later, window by window, because checking all of them would read every byte before step one.
    TokenDataset(const std::vector<std::string>& files, int32_t vocab_size, int32_t separator);

    int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
    const Shard& shard(int64_t index) const { return shards_[static_cast<size_t>(index)]; }
    int64_t num_tokens() const { return first_token_.back(); }
    int32_t vocab_size() const { return vocab_size_; }
    int32_t separator() const { return separator_; }

    // Tokens first … first+count-1 of one shard. Throws a data error naming file, token index, value and
    // limit at the first token ≥ vocab_size; an internal error if the range leaves the shard.
    std::span<const uint16_t> window(int64_t shard_index, int64_t first, int64_t count) const;

    // Copies tokens first … first+out.size()-1 of all shards taken as one stream. Same errors.
    void read_stream(int64_t first, std::span<int32_t> out) const;

  private:
    std::vector<Shard> shards_;
    std::vector<int64_t> first_token_;  // (num_shards + 1) stream index of each shard's begin, then the end
    int32_t vocab_size_;
    int32_t separator_;
};

}  // namespace speedrun
