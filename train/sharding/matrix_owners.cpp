#include "train/sharding/matrix_owners.h"

#include <algorithm>
#include <numeric>

namespace speedrun {

namespace {

std::vector<const Bucket*> buckets_of(const BucketLayout& layout, int group) {
    std::vector<const Bucket*> buckets;
    for (const Bucket& bucket : layout.all())
        if (bucket.group == group) buckets.push_back(&bucket);
    return buckets;
}

}  // namespace

double orthogonalisation_flops(int64_t rows, int64_t cols) {
    const auto side = static_cast<double>(std::min(rows, cols)),
               length = static_cast<double>(std::max(rows, cols));
    constexpr int kIterations = 5;
    return kIterations * (4 * side * side * length + 2 * side * side * side);  // X Xᵀ, A A, (…) X
}

MatrixRanks::MatrixRanks(const Bucket& bucket)
    : shards(bucket.num_shards),
      parts(bucket.first().cut.parts),
      index(bucket.index * parts + bucket.first().cut.index) {}

MatrixOwners::MatrixOwners(const BucketLayout& layout, int group)
    : MatrixOwners(layout, buckets_of(layout, group)) {}

MatrixOwners::MatrixOwners(const BucketLayout& layout, std::vector<const Bucket*> buckets) {
    // Sorted, so that all ranks assign equal owners in any order of updates.
    std::sort(buckets.begin(), buckets.end(), [](const Bucket* a, const Bucket* b) { return a->id > b->id; });
    for (const Bucket* bucket : buckets)
        for (const Matrix& matrix : layout.matrices(*bucket)) all_.push_back({matrix, bucket->id, 0});
    int ranks = 1;
    for (const Bucket* bucket : buckets) ranks = std::max(ranks, MatrixRanks(*bucket).size());
    loads_.assign(static_cast<size_t>(ranks), 0.0);
    assign(layout);
}

void MatrixOwners::assign(const BucketLayout& layout) {
    std::vector<OwnedMatrix*> longest_first;
    for (OwnedMatrix& owned : all_) longest_first.push_back(&owned);
    const auto cost = [](const OwnedMatrix* owned) {
        const Matrix& m = owned->matrix;
        return static_cast<double>(m.count) * orthogonalisation_flops(m.own_rows(), m.whole_cols());
    };
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](const OwnedMatrix* a, const OwnedMatrix* b) { return cost(a) > cost(b); });
    for (OwnedMatrix* owned : longest_first) {
        // One owner per matrix; a matrix replicated over the tensor axis has one per tensor rank.
        const auto owners = static_cast<size_t>(MatrixRanks(layout[owned->bucket]).size());
        const size_t repeats = loads_.size() / owners;
        const auto load_of = [&](size_t owner) {
            const auto first = loads_.begin() + static_cast<int64_t>(owner * repeats);
            return *std::max_element(first, first + static_cast<int64_t>(repeats));
        };
        size_t least = 0;
        for (size_t owner = 1; owner < owners; ++owner)
            if (load_of(owner) < load_of(least)) least = owner;
        owned->owner = static_cast<int>(least);
        for (size_t i = 0; i < repeats; ++i) loads_[least * repeats + i] += cost(owned);
        largest_ = std::max(largest_, cost(owned));
    }
}

double MatrixOwners::imbalance() const {
    if (all_.empty()) return 1;
    const double mean =
        std::accumulate(loads_.begin(), loads_.end(), 0.0) / static_cast<double>(loads_.size());
    return *std::max_element(loads_.begin(), loads_.end()) / std::max(mean, largest_);
}

Range MatrixOwners::stored(const Bucket& bucket, const Matrix& matrix, int rank) {
    const Range own = common({matrix.first, matrix.numel()},
                             BucketLayout::shard(bucket, MatrixRanks(bucket).shard_of(rank)));
    return {own.begin - matrix.first, own.count};
}

double MatrixOwners::sent_bytes(const Bucket& bucket, int64_t element_bytes) const {
    int64_t elements = 0;
    for (const OwnedMatrix& owned : all_) {
        if (owned.bucket != bucket.id) continue;
        elements += owned.matrix.whole_numel() - stored(bucket, owned.matrix, owned.owner).count;
    }
    return static_cast<double>(elements * element_bytes) / MatrixRanks(bucket).size();
}

}  // namespace speedrun
