// Begin and end of each document of a dataset.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_dataset.h"

namespace speedrun {

// A document is a separator and the text up to the next separator. SeparatorPosition determines the documents of a shard:
//   before  tokens before a shard's first separator belong to no document; a document ends with its shard.
//   after   the first text of the stream is a document without a stored separator; documents continue in the next
//           shard; a separator at the end of the stream begins no document.
// Memory: 4 bytes per document.
class DocumentIndex {
  public:
    struct Document {
        int64_t first = 0;   // stream index of its first stored token
        int64_t length = 0;  // tokens, including the separator
        bool bare = false;   // the separator is not stored
    };

    // The dataset must outlive the index. Reads every token once. Throws a data error if no document starts.
    explicit DocumentIndex(const TokenDataset& dataset);

    int64_t size() const { return static_cast<int64_t>(starts_.size()) + bare_; }
    Document operator[](int64_t index) const;  // in file order
    // Tokens of the dataset, plus the first document's separator if it is not stored. In an `after` stream that ends
    // with a separator, that one is counted as the first document's.
    int64_t num_tokens() const { return dataset_.num_tokens() + (bare_ && end_ == dataset_.num_tokens()); }

  private:
    struct Start {
        int64_t shard = 0, token = 0;  // token: index in the stream
    };
    Start start_of(int64_t separator) const;

    const TokenDataset& dataset_;
    std::vector<uint32_t> starts_;  // index of each document's separator in its shard
    std::vector<int64_t>
        // (num_shards + 1) index into starts_ of each shard's first document, then the total
        first_document_;
    bool bare_ = false;  // a document without a stored separator precedes starts_
    int64_t end_ = 0;    // stream index after the last document
};

}  // namespace speedrun
