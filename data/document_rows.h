// Rows packed from whole documents, so that no row begins inside a document.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "data/document_index.h"
#include "data/row_source.h"

namespace speedrun {

// Position in the order of documents, over all epochs.
struct DocumentPosition {
    int64_t epoch = 0, place = 0;
};

struct DocumentRowsOptions {
    int64_t sequence_length = 0;      // S
    int64_t max_document_tokens = 0;  // longer documents are truncated to this length; at least 1
    uint64_t seed = 0;                // seed of the order
    bool shuffle = true;              // false: documents in file order
    DocumentPosition begin = {};      // first document of the first row
};

// An epoch takes each document once, in file order or in the permutation of (seed, epoch). Rows have S+1 tokens (S
// inputs and the last target). A row takes documents, each cut at max_document_tokens, until it is full; the last one
// is cut at the row's end. The rest of a cut document is dropped, as are documents at the end of an epoch that fill no
// row. Rows thus share no tokens, and epochs with different permutations may differ in their number of rows.
//
// The first document of each row is stored in a table per epoch. The table is built in one pass over the documents'
// lengths, at the first access to the epoch; two tables are kept. Earlier epochs are packed too, to count their rows: a
// run that resumes in epoch e begins with e + 1 passes. Memory: at most 8 bytes per row of an epoch.
class DocumentRows final : public RowSource {
  public:
    // The dataset must outlive the rows; index: that of the dataset. Throws a usage error for max_document_tokens below
    // 1; a data error if all documents of an epoch do not fill one row.
    DocumentRows(const TokenDataset& dataset, std::shared_ptr<const DocumentIndex> index,
                 const DocumentRowsOptions& options);

    int64_t num_documents() const { return documents_->size(); }
    int64_t epoch(int64_t row) const override { return find(row).epoch; }
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::span<uint16_t> tokens) const override;
    std::string describe() const override;
    // Returns the position at which a row begins. Rows that another source packs from there share no document with
    // earlier rows.
    DocumentPosition begin_of(int64_t row) const;

  private:
    struct Packing {
        int64_t epoch = -1;                  // epoch of the order, or an equal one
        std::vector<uint32_t> first_places;  // (rows) index in the permutation of each row's first document
    };
    struct Place {
        int64_t epoch = 0, row = 0;  // row: index within the epoch
        std::shared_ptr<const Packing> packing;
    };

    int64_t cut_length(int64_t index) const;
    Packing pack(int64_t epoch) const;
    std::shared_ptr<const Packing> packing(int64_t epoch) const;  // requires mutex_
    Place find(int64_t row) const;

    const TokenDataset& dataset_;
    const std::shared_ptr<const DocumentIndex> documents_;
    const DocumentRowsOptions options_;

    mutable std::mutex mutex_;                                        // guards the members below
    mutable std::array<std::shared_ptr<const Packing>, 2> packings_;  // most recently used first
    // Index of the first row of each packed epoch, and of the next epoch. Index 0 is the epoch options_.begin.epoch.
    mutable std::vector<int64_t> first_row_ = {0};
};

}  // namespace speedrun
