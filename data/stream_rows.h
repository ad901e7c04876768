// Rows as windows of the shards, wherever documents begin and end.
#pragma once

#include "data/row_source.h"
#include "data/token_dataset.h"

namespace speedrun {

struct StreamRowsOptions {
    int64_t sequence_length = 0;  // S
    uint64_t seed = 0;            // of the order
    bool shuffle = true;          // false: windows in file order, from the start of every shard
};

// Row r is window perm(r mod N) of epoch r / N, where the N windows are S+1 tokens (S inputs and the last
// target) on a grid of S tokens in each shard; perm belongs to (seed, epoch). With shuffle each shard's grid
// starts at a random offset below S in each epoch, so that epochs cut the text differently; the offset leaves
// N the same in all epochs. A window never crosses a shard.
class StreamRows final : public RowSource {
  public:
    // The dataset must outlive the rows. Throws a data error if no shard holds S+1 tokens.
    StreamRows(const TokenDataset& dataset, const StreamRowsOptions& options);

    int64_t epoch(int64_t row) const override { return row / num_windows(); }
    EpochCounts counts(int64_t epoch) const override;
    void read(int64_t row, std::vector<Piece>& pieces) const override;
    std::string describe() const override;

  private:
    int64_t num_windows() const { return first_window_.back(); }  // N

    const TokenDataset& dataset_;
    StreamRowsOptions options_;
    std::vector<int64_t> first_window_;  // (num_shards + 1) index of each shard's first window, then N
};

}  // namespace speedrun
