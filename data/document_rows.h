// Rows packed from whole documents, so that none begins in the middle of a text.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "data/document_index.h"
#include "data/row_source.h"

namespace speedrun {

// A place in the order of documents, through all epochs.
struct DocumentPlace {
    int64_t epoch = 0, place = 0;
};

struct DocumentRowsOptions {
    int64_t sequence_length = 0;      // S
    int64_t max_document_tokens = 0;  // a document's tokens behind these are dropped; at least 1
    uint64_t seed = 0;                // of the order
    bool shuffle = true;              // false: documents in file order
    DocumentPlace begin = {};         // of the first row's first document
};

// An epoch takes each document once, in file order or in the
// permutation that belongs to (seed, epoch), and packs them into rows of S+1 tokens (S inputs and the last
// target): a row takes documents, each cut at max_document_tokens, until it is full, and the last one is cut
// there. The rest of a cut document is dropped, and so are documents at the epoch's end that fill no row; so
// rows share no token, and epochs of different permutations may differ in their number of rows.
//
// Which document a row begins with is a table of the epoch, made in one pass over the documents' lengths when a
// row of the epoch is asked for; the tables of two epochs are kept. Epochs before it are packed too, for their
// number of rows: a run that resumes in epoch e begins with e + 1 passes. Memory: at most 8 bytes for each row of
// an epoch.
class DocumentRows final : public RowSource {
  public:
    // The dataset must outlive the rows; index: of it. Throws a usage error for max_document_tokens below 1; a
    // data error where all documents of an epoch together do not fill one row.
    DocumentRows(const TokenDataset& dataset, std::shared_ptr<const DocumentIndex> index,
                 const DocumentRowsOptions& options);

    int64_t num_documents() const { return documents_->size(); }
    int64_t epoch(int64_t row) const override { return find(row).epoch; }
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::span<uint16_t> tokens) const override;
    std::string describe() const override;
    // Where a row begins, and with it what follows the row before: rows that others pack from there on share no
    // document with those before.
    DocumentPlace begin_of(int64_t row) const;

  private:
    struct Packing {
        int64_t epoch = -1;                  // whose order it is, or of which it is a copy
        std::vector<uint32_t> first_places;  // (rows) place in the permutation of each row's first document
    };
    struct Place {
        int64_t epoch = 0, row = 0;  // row: within the epoch
        std::shared_ptr<const Packing> packing;
    };

    int64_t cut_length(int64_t index) const;
    Packing pack(int64_t epoch) const;
    std::shared_ptr<const Packing> packing(int64_t epoch) const;  // mutex_ is held
    Place find(int64_t row) const;

    const TokenDataset& dataset_;
    const std::shared_ptr<const DocumentIndex> documents_;
    const DocumentRowsOptions options_;

    mutable std::mutex mutex_;                                        // guards what follows
    mutable std::array<std::shared_ptr<const Packing>, 2> packings_;  // the one used last comes first
    // The number of the first row of each epoch that has been packed, and of the one after; index 0 is the epoch
    // options_.begin.epoch.
    mutable std::vector<int64_t> first_row_ = {0};
};

}  // namespace speedrun
