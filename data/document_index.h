// Where the documents of a dataset begin and end.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_dataset.h"

namespace speedrun {

// A document is a separator and what follows it up to the next separator or the shard's end; tokens before a
// shard's first separator belong to none. Memory: 4 bytes for each document.
class DocumentIndex {
  public:
    struct Document {
        int64_t shard = 0, first = 0, length = 0;  // first: index of its separator in the shard
    };

    // The dataset must outlive the index. Reads every token once. Throws a data error where no document starts.
    explicit DocumentIndex(const TokenDataset& dataset);

    int64_t size() const { return static_cast<int64_t>(starts_.size()); }
    Document operator[](int64_t index) const;  // in file order

  private:
    const TokenDataset& dataset_;
    std::vector<uint32_t> starts_;         // (size) index of each separator in its shard
    std::vector<int64_t> first_document_;  // (num_shards + 1) of each shard, then the number of all
};

}  // namespace speedrun
