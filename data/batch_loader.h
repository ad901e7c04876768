// Batches for training and validation. The order of training is a pure function of (seed, step): which row a
// rank or microbatch asks for changes nothing about what is in it, so world size and microbatch size do not
// change the numbers, and a resumed run needs no loader state beyond the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/batch.h"
#include "data/ngrams.h"
#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

struct RowRange {
    int64_t first = 0, count = 0;
};

struct BatchLoaderOptions {
    int64_t sequence_length = 0;  // S, tokens per row
    int64_t rows_per_step = 0;    // rows per optimizer step, over all ranks and microbatches
    uint64_t seed = 0;            // of the order
    bool shuffle = true;          // false: in file order
    // 0: rows are windows of the shards (StreamRows). Else they are packed from documents that are cut at so
    // many tokens (DocumentRows).
    int64_t max_document_tokens = 0;
    bool document_mask = true;  // see Batch::first_key
    NgramTable ngrams = {};     // see Batch::ngrams
};

// Training rows. Row i of a step is row step * rows_per_step + i of the row source.
class BatchLoader {
  public:
    // The dataset must outlive the loader. Throws a usage error for sizes below 1, a data error where the
    // data fills no row.
    BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options);

    const BatchLoaderOptions& options() const { return options_; }
    // Epoch of the first row of a step.
    int64_t epoch(int64_t step) const { return rows_->epoch(step * options_.rows_per_step); }
    EpochCounts counts(int64_t epoch) const { return rows_->counts(epoch); }
    std::string describe() const { return rows_->describe(); }

    // Fills `batch` with rows of a step (first ≥ 0, first+count ≤ rows_per_step, else an internal error).
    // Vectors are reused. Safe to call from many threads with different batches. Throws a data error at a
    // token outside the vocabulary.
    void fill(int64_t step, RowRange rows, Batch& batch) const;

  private:
    int32_t separator_;
    BatchLoaderOptions options_;
    std::unique_ptr<const RowSource> rows_;
};

struct ValidationLoaderOptions {
    int64_t sequence_length = 0;  // S, tokens per row
    int64_t val_tokens = 0;       // targets to predict, 0 = all
    bool document_mask = true;    // see Batch::first_key
    NgramTable ngrams = {};       // see Batch::ngrams
};

// Validation rows: the shards as one stream, across their borders. Row k has inputs k*S … (k+1)*S-1 and
// targets k*S+1 … (k+1)*S of the stream, so each of the tokens 1 … val_tokens is a target exactly once. The
// last row may be partial: its rest is separators with target -1.
class ValidationLoader {
  public:
    // The dataset must outlive the loader. Throws a usage error for sizes out of range, a data error with
    // both numbers if the dataset is empty or has fewer targets than val_tokens.
    ValidationLoader(const TokenDataset& dataset, const ValidationLoaderOptions& options);

    int64_t num_rows() const { return num_rows_; }
    int64_t num_targets() const { return num_targets_; }

    // Fills `batch` with rows of the validation. Rows from num_rows() on are all padding, so that every rank
    // can run the same number of batches. Errors and threads as BatchLoader::fill.
    void fill(RowRange rows, Batch& batch) const;

  private:
    const TokenDataset& dataset_;
    ValidationLoaderOptions options_;
    int64_t num_targets_ = 0;
    int64_t num_rows_ = 0;
};

}  // namespace speedrun
