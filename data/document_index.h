// Where the documents of a dataset begin and end.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_dataset.h"

namespace speedrun {

// A document is a separator and the text up to the next separator. SeparatorPlace says how shards are cut into them:
//   before  a shard's tokens before its first separator belong to no document, and a document ends with its shard.
//   after   the stream's first text is a document without a stored separator. A document goes on in the next shard. A
//           separator that ends the stream begins none.
// Memory: 4 bytes for each document.
class DocumentIndex {
  public:
    struct Document {
        int64_t first = 0;   // index in the stream of its first stored token
        int64_t length = 0;  // tokens, the separator included
        bool bare = false;   // its separator is not stored
    };

    // The dataset must outlive the index. Reads every token once. Throws a data error where no document starts.
    explicit DocumentIndex(const TokenDataset& dataset);

    int64_t size() const { return static_cast<int64_t>(starts_.size()) + bare_; }
    Document operator[](int64_t index) const;  // in file order
    // Tokens of the dataset, and the separator that the first document has without storing it. In an
    // `after` stream that ends with a separator, that one stands for the first document's.
    int64_t num_tokens() const { return dataset_.num_tokens() + (bare_ && end_ == dataset_.num_tokens()); }

  private:
    struct Start {
        int64_t shard = 0, token = 0;  // token: index in the stream
    };
    Start start_of(int64_t separator) const;

    const TokenDataset& dataset_;
    std::vector<uint32_t> starts_;  // index of each document's separator in its shard
    std::vector<int64_t>
        first_document_;  // (num_shards + 1) of each shard in starts_, then the number of all
    bool bare_ = false;   // a document without a stored separator is before those of starts_
    int64_t end_ = 0;     // index in the stream after the last document
};

}  // namespace speedrun
