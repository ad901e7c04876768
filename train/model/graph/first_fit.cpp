#include "train/model/graph/first_fit.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t padded(int64_t bytes, int64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

Lodging place(const std::vector<Lodger>& lodgers, const std::vector<size_t>& order, int64_t alignment) {
    Lodging lodging{.offset = std::vector<int64_t>(lodgers.size())};
    std::vector<size_t> placed;
    for (const size_t i : order) {
        const Lodger& lodger = lodgers[i];
        std::vector<std::pair<int64_t, int64_t>> taken;  // begin, end
        for (const size_t j : placed) {
            if (lodgers[j].first > lodger.last || lodgers[j].last < lodger.first) continue;
            taken.emplace_back(lodging.offset[j], lodging.offset[j] + padded(lodgers[j].bytes, alignment));
        }
        std::sort(taken.begin(), taken.end());
        int64_t offset = 0;
        for (const auto& [begin, end] : taken) {
            if (begin - offset >= padded(lodger.bytes, alignment)) break;
            offset = std::max(offset, end);
        }
        lodging.offset[i] = offset;
        lodging.bytes = std::max(lodging.bytes, offset + padded(lodger.bytes, alignment));
        placed.push_back(i);
    }
    return lodging;
}

}  // namespace

Lodging first_fit(const std::vector<Lodger>& lodgers, int64_t alignment) {
    int steps = 0;
    for (const Lodger& lodger : lodgers) {
        if (lodger.bytes < 0 || lodger.first < 0 || lodger.last < lodger.first)
            throw_internal("{} bytes from step {} to {}", lodger.bytes, lodger.first, lodger.last);
        steps = std::max(steps, lodger.last + 1);
    }
    std::vector<size_t> by_size(lodgers.size());
    std::iota(by_size.begin(), by_size.end(), size_t{0});
    std::vector<size_t> by_begin = by_size;
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](size_t a, size_t b) { return lodgers[a].bytes > lodgers[b].bytes; });
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](size_t a, size_t b) { return lodgers[a].first < lodgers[b].first; });
    Lodging best = place(lodgers, by_size, alignment);
    if (Lodging other = place(lodgers, by_begin, alignment); other.bytes < best.bytes)
        best = std::move(other);

    std::vector<int64_t> change(static_cast<size_t>(steps) + 1);
    for (const Lodger& lodger : lodgers) {
        change[static_cast<size_t>(lodger.first)] += lodger.bytes;
        change[static_cast<size_t>(lodger.last) + 1] -= lodger.bytes;
    }
    for (int64_t held = 0; const int64_t step : change) best.least = std::max(best.least, held += step);
    return best;
}

}  // namespace speedrun
