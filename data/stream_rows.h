// Rows as windows of the shards, wherever documents begin and end.
#pragma once

#include <vector>

#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

// A piece of the order of windows that is cut into rows shorter than windows: what a stage of a run reads whose rows
// are shorter than another's. By default all of the order, a window being a row.
struct WindowRange {
    int64_t window_tokens = 0;  // W, of an uncut window; 0: S. At least S
    int64_t first = 0;          // counted through all epochs
    int64_t count = 0;          // n windows, and n more behind the last row of those; 0: all behind the first
};

struct StreamRowsOptions {
    int64_t sequence_length = 0;  // S
    uint64_t seed = 0;            // of the order
    bool shuffle = true;          // false: windows in file order, from the start of every shard
    WindowRange range = {};
};

// Window w is perm(w mod N) of epoch w / N, where the N windows are W+1 tokens on a grid of W tokens in each shard;
// perm belongs to (seed, epoch). With shuffle each shard's grid starts at a random offset below W in each epoch, so
// that epochs cut the text differently; the offset leaves N the same in all epochs. A window never crosses a shard.
//
// A window is W / S rows of S+1 tokens (S inputs and the last target); what is left of it is in none. Shuffled, row
// r of a range of n windows is piece r / n of its window r mod n, so that rows behind each other come from different
// windows; else piece r mod (W / S) of window r / (W / S). Ranges that follow each other share no row, whatever
// their S.
class StreamRows final : public RowSource {
  public:
    // The dataset must outlive the rows. Throws a data error if no shard holds S+1 tokens.
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
