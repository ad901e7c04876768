#include "train/sharding/row_owners.h"

#include "kernels/device/error.h"

namespace speedrun {

RowOwners::RowOwners(const Bucket& bucket, bool all_own_all, int num_ranks)
    : rows_(bucket.first().shape.at(0)),
      columns_(bucket.first().shape.at(1)),
      most_(bucket.max_rows),
      elements_(bucket.count),
      shard_size_(bucket.shard_size),
      num_ranks_(num_ranks),
      all_own_all_(all_own_all) {
    if (!all_own_all && bucket.num_shards != num_ranks)
        throw_internal("{}: rows of {} shards among {} ranks", bucket.name(), bucket.num_shards, num_ranks);
}

Range RowOwners::owned_by(int rank) const {
    if (all_own_all_) return {0, rows_};
    const Range shard = common({0, elements_}, {rank * shard_size_, shard_size_});
    if (shard.count == 0) return {};
    const int64_t first = shard.begin / columns_;
    return {first, (shard.end() + columns_ - 1) / columns_ - first};
}

int64_t RowOwners::max_packed() const {
    if (all_own_all_) return most_;
    int64_t in_shards = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) in_shards += owned_by(rank).count;
    return std::min(most_ + num_ranks_ - 1, in_shards);
}

double RowOwners::max_sent() const {
    if (all_own_all_) return static_cast<double>((num_ranks_ - 1) * most_);
    int64_t in_shards = 0, sent = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) in_shards += owned_by(rank).count;
    for (int rank = 0; rank < num_ranks_; ++rank)
        sent += std::min(max_packed(), in_shards - owned_by(rank).count);
    return static_cast<double>(sent) / num_ranks_;
}

}  // namespace speedrun
