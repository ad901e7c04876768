// Writes documents that are read in parts as the shards of two splits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/shard_writer.h"
#include "data/tokenizer.h"

namespace speedrun {

struct SplitSummary {
    int64_t documents = 0;
    int64_t tokens = 0;  // including separators
};

// Documents for validation.
struct SplitRule {
    int64_t every = 0;  // document K, 2K, … (from 1); 0: none
    // Documents that begin at this byte of the text of all documents or later; -1: none. A whole text file is cut at the first line
    // end there.
    int64_t from_byte = -1;
};

class DatasetWriter {
  public:
    // Writes into a folder. tokenizer: outlives the writer.
    DatasetWriter(const std::string& folder, const Tokenizer& tokenizer, const SplitRule& rule,
                  int64_t shard_tokens);

    // Adds a part of a document, see DocumentHandler. Documents without text are skipped.
    void text(std::string_view part, bool is_cuttable);
    void end_document();

    int64_t documents() const { return documents_; }
    // Completes the files. Appends the shards to info.shards.
    struct Splits {
        SplitSummary train, val;
    };
    Splits finish(DatasetInfo& info);

  private:
    struct Split {
        ShardWriter shards;
        int64_t documents = 0;
    };
    Split& current() { return to_val_ ? val_ : train_; }
    void append(std::string_view part);
    void flush();

    const SplitRule rule_;
    const uint16_t separator_;
    const std::unique_ptr<TextEncoder> encoder_;
    Split train_, val_;
    std::vector<uint16_t> tokens_;  // not yet written
    bool in_document_ = false, to_val_ = false;
    int64_t documents_ = 0, bytes_ = 0;  // begun, and their text
};

}  // namespace speedrun
