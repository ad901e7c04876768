// Rows packed from whole documents, so that none begins in the middle of a text.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

struct DocumentRowsOptions {
    int64_t sequence_length = 0;      // S
    int64_t max_document_tokens = 0;  // a document's tokens behind these are dropped; at least 1
    uint64_t seed = 0;                // of the order
    bool shuffle = true;              // false: documents in file order
};

// A document is a separator and what follows it up to the next separator or the shard's end; tokens before a
// shard's first separator belong to none. An epoch takes each document once, in file order or in the
// permutation that belongs to (seed, epoch), and packs them into rows of S+1 tokens (S inputs and the last
// target): a row takes documents, each cut at max_document_tokens, until it is full, and the last one is cut
// there. The rest of a cut document is dropped, and so are documents at the epoch's end that fill no row; so
// rows share no token, and epochs of different permutations may differ in their number of rows.
//
// Which document a row begins with is a table of the epoch, made in one pass over the documents' lengths when a
// row of the epoch is asked for; the tables of two epochs are kept. Epochs before it are packed too, for their
// number of rows: a run that resumes in epoch e begins with e + 1 passes. Memory: 4 bytes for each document and
// at most 8 for each row of an epoch.
class DocumentRows final : public RowSource {
  public:
    // The dataset must outlive the rows. Reads every token once. Throws a usage error for
    // max_document_tokens below 1; a data error where no document starts, or all documents of an epoch
    // together do not fill one row.
    DocumentRows(const TokenDataset& dataset, const DocumentRowsOptions& options);

    int64_t num_documents() const { return static_cast<int64_t>(starts_.size()); }
    int64_t epoch(int64_t row) const override { return find(row).epoch; }
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::vector<Piece>& pieces) const override;
    std::string describe() const override;

  private:
    struct Document {
        int64_t shard = 0, first = 0, length = 0;  // first: index of its separator in the shard
    };
    struct Packing {
        int64_t order = -1;                  // the epoch whose permutation it is
        std::vector<uint32_t> first_places;  // (rows) place in the permutation of each row's first document
    };
    struct Place {
        int64_t epoch = 0, row = 0;  // row: within the epoch
        std::shared_ptr<const Packing> packing;
    };

    Document document(int64_t index) const;
    int64_t cut_length(int64_t index) const;
    // Epochs without shuffle have one order.
    int64_t order_of(int64_t epoch) const { return options_.shuffle ? epoch : 0; }
    Packing pack(int64_t order) const;
    std::shared_ptr<const Packing> packing(int64_t order) const;  // mutex_ is held
    Place find(int64_t row) const;

    const TokenDataset& dataset_;
    DocumentRowsOptions options_;
    std::vector<uint32_t> starts_;         // (num_documents) index of each separator in its shard
    std::vector<int64_t> first_document_;  // (num_shards + 1) of each shard, then the number of all

    mutable std::mutex mutex_;                                        // guards what follows
    mutable std::array<std::shared_ptr<const Packing>, 2> packings_;  // the one used last comes first
    mutable std::vector<int64_t> first_row_ = {0};  // of each epoch that has been packed, and of the next one
};

}  // namespace speedrun
