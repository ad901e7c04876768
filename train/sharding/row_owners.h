// RowOwners: ranks that sum the exchanged rows of a table's gradient (Bucket::max_rows). A shard begins at any
// element, so two ranks may own parts of one row, which is then sent to both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "train/sharding/bucket_layout.h"

namespace speedrun {

// Returns the rows in the range; `rows` must ascend.
inline std::span<const int32_t> rows_in(const Range& range, std::span<const int32_t> rows) {
    const auto begin = std::lower_bound(rows.begin(), rows.end(), range.begin),
               end = std::lower_bound(begin, rows.end(), range.end());
    return rows.subspan(static_cast<size_t>(begin - rows.begin()), static_cast<size_t>(end - begin));
}

class RowOwners {
  public:
    // all_own_all: each rank owns all rows; otherwise the rows of its shard of the bucket. Throws an internal error if the
    // bucket's number of shards is not that of ranks.
    RowOwners(const Bucket& bucket, bool all_own_all, int num_ranks);

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int num_ranks() const { return num_ranks_; }
    // True if every rank owns every row; all are then sent the same rows.
    bool all_own_all() const { return all_own_all_; }
    Range owned_by(int rank) const;
    // Upper bound of rows that a rank sends, including to itself. A row for two owners counts twice; a row for all
    // owners counts once.
    int64_t max_packed() const;
    // Upper bound of rows that this rank of the owners receives.
    int64_t max_received(int rank) const { return num_ranks_ * std::min(most_, owned_by(rank).count); }
    // Upper bound of rows sent to other ranks, mean over ranks.
    double max_sent() const;

  private:
    const int64_t rows_, columns_, most_, elements_, shard_size_;
    const int num_ranks_;
    const bool all_own_all_;
};

}  // namespace speedrun
