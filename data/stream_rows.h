// Rows as windows of the shards, independent of documents.
#pragma once

#include <vector>

#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

// Range of the order of windows. Windows may be cut into shorter rows, if a stage has shorter rows than another.
// Default: the whole order, one row per window.
struct WindowRange {
    int64_t window_tokens = 0;  // W, tokens per uncut window; 0: S. At least S
    int64_t first = 0;          // index over all epochs
    int64_t count = 0;          // n windows, followed by the next n; 0: unlimited
};

struct StreamRowsOptions {
    int64_t sequence_length = 0;  // S
    uint64_t seed = 0;            // seed of the order
    bool shuffle = true;          // false: windows in file order, from the start of each shard
    WindowRange range = {};
};

// Window w is perm(w mod N) of epoch w / N. The N windows have W+1 tokens, on a grid of W tokens in each shard; perm is
// that of (seed, epoch). With shuffle, each shard's grid starts at a random offset below W in each epoch, so that
// epochs cut the text differently; N does not depend on the offset. A window never crosses a shard.
//
// A window has W / S rows of S+1 tokens (S inputs and the last target); the remainder is in no row. Shuffled in a range
// of n windows, row r is piece r / n of window r mod n: consecutive rows are from different windows. Otherwise row r is
// piece r mod (W / S) of window r / (W / S). Consecutive ranges share no row, for any S.
class StreamRows final : public RowSource {
  public:
    // The dataset must outlive the rows. Throws a data error if no shard has S+1 tokens.
    StreamRows(const TokenDataset& dataset, const StreamRowsOptions& options);

    int64_t epoch(int64_t row) const override { return place_of(row).window / num_windows(); }
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::span<uint16_t> tokens) const override;
    std::string describe() const override;

  private:
    struct Place {
        int64_t window = 0, piece = 0;
    };

    int64_t num_windows() const { return first_window_.back(); }  // N
    int64_t pieces() const { return options_.range.window_tokens / options_.sequence_length; }
    Place place_of(int64_t row) const;

    const TokenDataset& dataset_;
    StreamRowsOptions options_;
    std::vector<int64_t> first_window_;  // (num_shards + 1) index of each shard's first window, then N
};

}  // namespace speedrun
