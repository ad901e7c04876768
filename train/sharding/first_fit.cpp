#include "train/sharding/first_fit.h"

#include <algorithm>
#include <numeric>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t padded(int64_t bytes, int64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

bool overlap(const Lifetime& a, const Lifetime& b) {
    return a.first <= a.last && b.first <= b.last && a.first <= b.last && b.first <= a.last;
}

bool meet(const Lodger& a, const Lodger& b) {
    const Lifetime of_a{a.first, a.last}, of_b{b.first, b.last};
    return overlap(of_a, of_b) || overlap(of_a, b.again) || overlap(a.again, of_b) ||
           overlap(a.again, b.again);
}

Lodging place(const std::vector<Lodger>& lodgers, const std::vector<size_t>& order, int64_t alignment) {
    Lodging lodging{.offset = std::vector<int64_t>(lodgers.size())};
    std::vector<size_t> placed;  // sorted by offset
    placed.reserve(lodgers.size());
    for (const size_t i : order) {
        const Lodger& lodger = lodgers[i];
        if (lodger.bytes == 0) continue;
        const int64_t bytes = padded(lodger.bytes, alignment);
        int64_t offset = 0;
        for (const size_t j : placed) {
            const int64_t begin = lodging.offset[j], end = begin + padded(lodgers[j].bytes, alignment);
            if (begin - offset >= bytes) break;
            if (end > offset && meet(lodgers[j], lodger)) offset = end;
        }
        lodging.offset[i] = offset;
        lodging.bytes = std::max(lodging.bytes, offset + lodger.bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                       [&](int64_t at, size_t j) { return at < lodging.offset[j]; }),
                      i);
    }
    return lodging;
}

}  // namespace

Lodging first_fit(const std::vector<Lodger>& lodgers, int64_t alignment) {
    for (const Lodger& lodger : lodgers) {
        if (lodger.bytes < 0 || lodger.last < lodger.first)
            throw_internal("{} bytes from step {} to {}", lodger.bytes, lodger.first, lodger.last);
    }
    std::vector<size_t> by_size(lodgers.size());
    std::iota(by_size.begin(), by_size.end(), size_t{0});
    std::vector<size_t> by_begin = by_size;
    std::stable_sort(by_size.begin(), by_size.end(),
                     [&](size_t a, size_t b) { return lodgers[a].bytes > lodgers[b].bytes; });
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](size_t a, size_t b) { return lodgers[a].first < lodgers[b].first; });
    const Lodging largest_first = place(lodgers, by_size, alignment);
    Lodging lodging = place(lodgers, by_begin, alignment);
    return largest_first.bytes < lodging.bytes ? largest_first : lodging;
}

}  // namespace speedrun
