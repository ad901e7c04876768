// Batches for training and validation. The training order is a pure function of (seed, step): the content of a row does
// not depend on the rank or microbatch that reads it. World size and microbatch size therefore do not change values,
// and a resumed run needs only its step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/columns/column.h"
#include "data/mixture_order.h"
#include "data/row_source.h"
#include "data/source_use.h"
#include "data/token_dataset.h"

namespace speedrun {

struct RowRange {
    int64_t first = 0, count = 0;
};

// Steps with rows of one length.
struct LoaderStage {
    int64_t sequence_length = 0;  // S, tokens per row
    int64_t rows_per_step = 0;    // rows per optimizer step, over all ranks and microbatches
    // 0: rows are windows of the shards (StreamRows). Otherwise rows are packed from documents, which are cut at this
    // many tokens (DocumentRows). Zero in all stages or in none.
    int64_t max_document_tokens = 0;
    std::vector<Column> columns = {};  // columns that the model of the stage reads
    int64_t num_steps = 0;             // ignored in the last stage

    int64_t num_rows() const { return num_steps * rows_per_step; }
    bool of_documents() const { return max_document_tokens > 0; }
};

// A dataset, and its weight in a mixture of several.
struct WeightedDataset {
    const TokenDataset* dataset;
    double weight = 1;
};

struct BatchLoaderOptions {
    std::vector<LoaderStage> stages;  // in order, at least one
    uint64_t seed = 0;                // seed of the order
    bool shuffle = true;              // false: in file order
    bool document_mask = true;        // see Batch::first_key
    ContextSlice part = {};           // tokens of every row
    PrefixTable prefixes = {};        // for columns that read it
};

// Training rows. Row i of a step is row (step − first step of the stage) * rows_per_step + i of the stage's row source.
// Each source begins where the previous stage's ended, so within an epoch no token is in two rows. Several datasets are a
// mixture (MixedRows): each one has rows of its own, the first with the seed's order.
class BatchLoader {
  public:
    // The datasets, of one tokenizer, must outlive the loader. Throws a usage error for sizes below 1, a data error if the data
    // does not fill one row.
    BatchLoader(const std::vector<WeightedDataset>& sources, const BatchLoaderOptions& options);
    BatchLoader(const TokenDataset& dataset, const BatchLoaderOptions& options)
        : BatchLoader(std::vector<WeightedDataset>{{.dataset = &dataset}}, options) {}

    const BatchLoaderOptions& options() const { return options_; }
    size_t stage_at(int64_t step) const;  // index of the step's stage
    // Epoch of the first row of a step.
    int64_t epoch(int64_t step) const;
    // Returns the rows and tokens of an epoch read entirely in rows of the first stage.
    EpochCounts counts(int64_t epoch) const { return stages_.front().rows->counts(epoch); }
    // Use of each source of a mixture by the first `steps` steps, without names; empty for a single dataset.
    std::vector<SourceUse> uses(int64_t steps) const;
    // Returns one line per stage, and one per source of a mixture.
    std::string describe() const;

    // Fills `batch` with these rows of a step (0 ≤ first, first+count ≤ rows_per_step, else an internal error). Reuses
    // vectors. Safe for concurrent calls with different batches. Throws a data error for a token outside the
    // vocabulary.
    void fill(int64_t step, RowRange rows, Batch& batch) const;

  private:
    struct Stage {
        LoaderStage stage;
        int64_t first_step = 0, first_row = 0;  // position in the run
        std::unique_ptr<const RowSource> rows = nullptr;
    };
    using StageRows = std::vector<std::unique_ptr<const RowSource>>;  // index: stage
    // A dataset, the seed of its order, and its rows in each stage.
    struct OneSource {
        const TokenDataset& dataset;
        uint64_t seed;
        std::vector<int64_t> num_rows;
    };

    StageRows rows_of(const OneSource& source) const;
    StageRows windows_of(const OneSource& source) const;
    StageRows documents_of(const OneSource& source) const;
    void mix(const std::vector<WeightedDataset>& sources);
    int64_t first_row_after(size_t stage) const {
        return stages_[stage].first_row + stages_[stage].stage.num_rows();
    }

    const int32_t separator_;  // see BatchLayout
    BatchLoaderOptions options_;
    std::vector<Stage> stages_;
    std::shared_ptr<const MixtureOrder> order_;  // null: a single dataset
    std::vector<EpochCounts> first_epochs_;      // index: source of a mixture; in rows of the first stage
};

struct ValidationLoaderOptions {
    int64_t sequence_length = 0;       // S, tokens per row
    int64_t val_tokens = 0;            // number of targets, 0: all
    bool document_mask = true;         // see Batch::first_key
    std::vector<Column> columns = {};  // columns that the model reads
    ContextSlice part = {};            // tokens of every row
};

// Validation rows: all shards as one stream. Row k has inputs k*S … (k+1)*S-1 and targets k*S+1 … (k+1)*S of the
// stream. Each of the tokens 1 … val_tokens is thus a target exactly once. The last row may be partial: the rest is
// separators with target -1.
class ValidationLoader {
  public:
    // The dataset must outlive the loader. Throws a usage error for sizes out of range. Throws a data error, with both
    // numbers, if the dataset is empty or has fewer targets than val_tokens.
    ValidationLoader(const TokenDataset& dataset, const ValidationLoaderOptions& options);

    int64_t num_rows() const { return num_rows_; }
    int64_t num_targets() const { return num_targets_; }

    // Fills `batch` with these rows. Rows from num_rows() on are only padding, so that all ranks can run the same
    // number of batches. Errors and threads as in BatchLoader::fill.
    void fill(RowRange rows, Batch& batch) const;

  private:
    const TokenDataset& dataset_;
    ValidationLoaderOptions options_;
    int64_t num_targets_ = 0;
    int64_t num_rows_ = 0;
};

}  // namespace speedrun
