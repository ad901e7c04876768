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

MatrixOwners::MatrixOwners(const BucketLayout& layout, int group)
    : MatrixOwners(layout, buckets_of(layout, group)) {}

MatrixOwners::MatrixOwners(const BucketLayout& layout, std::vector<const Bucket*> buckets) {
    // Whatever the order in which they are stepped, all agree on the owners.
    std::sort(buckets.begin(), buckets.end(), [](const Bucket* a, const Bucket* b) { return a->id > b->id; });
    for (const Bucket* bucket : buckets)
        for (const Matrix& matrix : layout.matrices(*bucket)) all_.push_back({matrix, bucket->id, 0});
    loads_.assign(buckets.empty() ? 1 : static_cast<size_t>(buckets.front()->num_shards), 0.0);
    assign();
}

void MatrixOwners::assign() {
    std::vector<OwnedMatrix*> longest_first;
    for (OwnedMatrix& owned : all_) longest_first.push_back(&owned);
    const auto cost = [](const OwnedMatrix* owned) {
        return orthogonalisation_flops(owned->matrix.rows, owned->matrix.cols);
    };
    std::stable_sort(longest_first.begin(), longest_first.end(),
                     [&](const OwnedMatrix* a, const OwnedMatrix* b) { return cost(a) > cost(b); });
    for (OwnedMatrix* owned : longest_first) {
        const auto least = std::min_element(loads_.begin(), loads_.end());
        owned->owner = static_cast<int>(least - loads_.begin());
        *least += cost(owned);
        largest_ = std::max(largest_, cost(owned));
    }
}

double MatrixOwners::imbalance() const {
    if (all_.empty()) return 1;
    const double mean =
        std::accumulate(loads_.begin(), loads_.end(), 0.0) / static_cast<double>(loads_.size());
    return *std::max_element(loads_.begin(), loads_.end()) / std::max(mean, largest_);
}

MatrixOwners::Span MatrixOwners::stored(const Bucket& bucket, const Matrix& matrix, int index) {
    const int64_t begin = std::max(matrix.first, index * bucket.shard_size),
                  end = std::min(matrix.first + matrix.numel(), (index + 1) * bucket.shard_size);
    return {begin, std::max<int64_t>(0, end - begin)};
}

double MatrixOwners::sent_bytes(const Bucket& bucket, int64_t element_bytes) const {
    int64_t elements = 0;
    for (const OwnedMatrix& owned : all_) {
        if (owned.bucket != bucket.id) continue;
        elements += owned.matrix.numel() - stored(bucket, owned.matrix, owned.owner).count;
    }
    return static_cast<double>(elements * element_bytes) / bucket.num_shards;
}

}  // namespace speedrun
