#include "kernels/ops/attention_tiles.h"

#include <algorithm>

namespace speedrun {

namespace {

constexpr int64_t kGroup = 32;  // queries per stored lowest key of kernels/cuda/ops/attention.cuh

int64_t tiles_between(int64_t begin, int64_t end, int64_t rows) {
    return end > begin ? (end - begin + rows - 1) / rows : 0;
}

// One sequence. Places and first visible keys ascend with the query, so the first query of a range has the lowest key.
class Sequence {
  public:
    Sequence(const AttentionShape& shape, std::span<const int32_t> first_keys)
        : shape_(shape), first_keys_(first_keys) {}

    int64_t place(int64_t query) const {
        const int64_t front = shape_.queries < shape_.keys ? shape_.queries / 2 : shape_.queries;
        const int64_t place = query < front ? query : shape_.keys - (shape_.queries - query);
        return std::min(place, shape_.keys - 1);
    }
    // First visible key by the window alone, and with documents.
    int64_t recent(int64_t query) const {
        return shape_.window > 0 ? std::max<int64_t>(place(query) - shape_.window + 1, 0) : 0;
    }
    int64_t low(int64_t query) const {
        const int64_t document = first_keys_.empty() ? 0 : first_keys_[static_cast<size_t>(place(query))];
        return std::max(recent(query), document);
    }
    int64_t tiles_of_queries(int64_t begin, int64_t keys) const {
        const int64_t last = std::min(begin + kAttentionOwned, shape_.queries) - 1;
        return tiles_between(low(begin) / keys * keys, place(last) + 1, keys);
    }
    int64_t tiles_of_keys(int64_t begin, int64_t queries) const {
        const int64_t end = std::min(begin + kAttentionOwned, shape_.keys), first = first_query(begin);
        const int64_t limit = shape_.window > 0
                                  ? std::min(shape_.queries, first_query(end - 1 + shape_.window))
                                  : shape_.queries;
        int64_t group = (limit + kGroup - 1) / kGroup - 1;
        while (group >= first / kGroup && low(group * kGroup) >= end) --group;
        return tiles_between(first, std::min(limit, (group + 1) * kGroup), queries);
    }
    struct Pairs {
        double visible = 0, counted = 0;
    };
    Pairs pairs() const {
        Pairs sum;
        for (int64_t i = 0; i < shape_.queries; ++i) {
            sum.visible += static_cast<double>(place(i) + 1 - low(i));
            sum.counted += static_cast<double>(place(i) + 1 - recent(i));
        }
        return sum;
    }

  private:
    int64_t first_query(int64_t key) const {  // at or after this key
        int64_t low = 0, high = shape_.queries;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (place(middle) < key)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    const AttentionShape& shape_;
    const std::span<const int32_t> first_keys_;
};

}  // namespace

AttentionWork attention_work(const AttentionShape& shape, const AttentionTiling& tiling,
                             std::span<const int32_t> first_keys) {
    const auto length = static_cast<size_t>(shape.keys);
    const size_t rows = shape.documents ? first_keys.size() / length : 0;
    AttentionWork work;
    double visible = 0, counted = 0;
    for (size_t row = 0; row < std::max<size_t>(rows, 1); ++row) {
        const Sequence sequence(
            shape, rows > 0 ? first_keys.subspan(row * length, length) : std::span<const int32_t>());
        for (int64_t begin = 0; begin < shape.queries; begin += kAttentionOwned) {
            work.tiles += static_cast<double>(sequence.tiles_of_queries(begin, tiling.keys));
            ++work.blocks;
        }
        for (int64_t begin = 0; tiling.queries > 0 && begin < shape.keys; begin += kAttentionOwned) {
            work.tiles += static_cast<double>(sequence.tiles_of_keys(begin, tiling.queries));
            ++work.blocks;
        }
        const auto [seen, all] = sequence.pairs();
        visible += seen;
        counted += all;
    }
    const double scale = static_cast<double>(shape.sequences * shape.num_heads) /
                         static_cast<double>(std::max<size_t>(rows, 1));
    return {work.tiles * scale, work.blocks * scale, visible / counted};
}

}  // namespace speedrun
