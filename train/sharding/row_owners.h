// RowOwners: who sums which rows of a table whose gradient ranks exchange as rows (Bucket::most_rows). A shard begins at any
// element, so that two ranks may own parts of one row, which then goes to both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "train/sharding/bucket_layout.h"

namespace speedrun {

struct OwnedRange {
    int64_t first = 0, count = 0;

    // Those of ascending rows that are in the range.
    std::span<const int32_t> of(std::span<const int32_t> rows) const {
        const auto begin = std::lower_bound(rows.begin(), rows.end(), first),
                   end = std::lower_bound(begin, rows.end(), first + count);
        return rows.subspan(static_cast<size_t>(begin - rows.begin()), static_cast<size_t>(end - begin));
    }
};

class RowOwners {
  public:
    // all_own_all: each rank owns all rows; else each those of its shard of the bucket. Throws an internal error where the
    // bucket has another number of shards than ranks.
    RowOwners(const Bucket& bucket, bool all_own_all, int num_ranks);

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int num_ranks() const { return num_ranks_; }
    // Does every rank own every row? All are sent the same then.
    bool all_own_all() const { return all_own_all_; }
    OwnedRange owned_by(int rank) const;
    // Rows that a rank has to send at most, itself included: one that goes to two owners counts twice, one that goes to all
    // once.
    int64_t most_packed() const;
    // … and that it receives at most as this rank of the owners.
    int64_t most_received(int rank) const { return num_ranks_ * std::min(most_, owned_by(rank).count); }
    // … and that it sends to others at most, mean over the ranks.
    double most_sent() const;

  private:
    const int64_t rows_, columns_, most_, elements_, shard_size_;
    const int num_ranks_;
    const bool all_own_all_;
};

}  // namespace speedrun
