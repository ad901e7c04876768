// Batches for training and validation. The order of training is a pure function of (seed, step): which row a
// rank or microbatch asks for changes nothing about what is in it, so world size and microbatch size do not
// change the numbers, and a resumed run needs no loader state beyond the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/columns/column.h"
#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

struct RowRange {
    int64_t first = 0, count = 0;
};

// Steps that have rows of one length.
struct LoaderStage {
    int64_t sequence_length = 0;  // S, tokens per row
    int64_t rows_per_step = 0;    // rows per optimizer step, over all ranks and microbatches
    // 0: rows are windows of the shards (StreamRows). Else they are packed from documents that are cut at so
    // many tokens (DocumentRows). Of all stages or of none.
    int64_t max_document_tokens = 0;
    std::vector<Column> columns = {};  // columns that the model of the stage reads
    int64_t num_steps = 0;             // the last stage has no end

    int64_t num_rows() const { return num_steps * rows_per_step; }
    bool of_documents() const { return max_document_tokens > 0; }
};

struct BatchLoaderOptions {
    std::vector<LoaderStage> stages;  // in order, one at least
    uint64_t seed = 0;                // seed of the order
    bool shuffle = true;              // false: in file order
    bool document_mask = true;        // see Batch::first_key
    ContextPart part = {};            // tokens of every row
    PrefixTable prefixes = {};        // for columns that read it
};

// Training rows. Row i of a step is row (step − the stage's first) * rows_per_step + i of the stage's row source,
// which begins where that of the stage before ended: up to the end of an epoch no token is in two rows.
class BatchLoader {
  public:
    // The dataset must outlive the loader. Throws a usage error for sizes below 1, a data error where the
    // data fills no row.
    BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options);

    const BatchLoaderOptions& options() const { return options_; }
    size_t stage_at(int64_t step) const;  // index of the step's stage
    // Epoch of the first row of a step.
    int64_t epoch(int64_t step) const;
    // Rows and tokens of an epoch, if all of it were read in rows of the first stage.
    EpochCounts counts(int64_t epoch) const { return stages_.front().rows->counts(epoch); }
    // A line for each stage.
    std::string describe() const;

    // Fills `batch` with this part of rows of a step (first ≥ 0, first+count ≤ rows_per_step, else an internal error).
    // Vectors are reused. Safe to call from many threads with different batches. Throws a data error at a
    // token outside the vocabulary.
    void fill(int64_t step, RowRange rows, Batch& batch) const;

  private:
    struct Stage {
        LoaderStage stage;
        int64_t first_step = 0;
        std::unique_ptr<const RowSource> rows;
    };

    void add_windows(const TokenDataset& dataset);
    void add_documents(const TokenDataset& dataset);

    const int32_t separator_;  // see BatchLayout
    BatchLoaderOptions options_;
    std::vector<Stage> stages_;
};

struct ValidationLoaderOptions {
    int64_t sequence_length = 0;       // S, tokens per row
    int64_t val_tokens = 0;            // targets to predict, 0 = all
    bool document_mask = true;         // see Batch::first_key
    std::vector<Column> columns = {};  // columns that the model reads
    ContextPart part = {};             // tokens of every row
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

    // Fills `batch` with this part of rows of the validation. Rows from num_rows() on are all padding, so that every rank
    // can run the same number of batches. Errors and threads as BatchLoader::fill.
    void fill(RowRange rows, Batch& batch) const;

  private:
    const TokenDataset& dataset_;
    ValidationLoaderOptions options_;
    int64_t num_targets_ = 0;
    int64_t num_rows_ = 0;
};

}  // namespace speedrun
