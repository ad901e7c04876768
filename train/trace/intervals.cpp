#include "train/trace/intervals.h"

#include <algorithm>

namespace speedrun {

namespace {

// Returns the index of the first interval that ends after this time.
size_t first_after(const Intervals& all, double time) {
    const auto at =
        std::partition_point(all.begin(), all.end(), [&](const Interval& i) { return i.end <= time; });
    return static_cast<size_t>(at - all.begin());
}

}  // namespace

Intervals merged_intervals(std::vector<Interval> all) {
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    Intervals result;
    for (const Interval& i : all) {
        if (i.end <= i.begin) continue;
        if (!result.empty() && i.begin <= result.back().end) {
            result.back().end = std::max(result.back().end, i.end);
        } else {
            result.push_back(i);
        }
    }
    return result;
}

Intervals common(const Intervals& a, const Intervals& b) {
    Intervals result;
    if (a.empty() || b.empty()) return result;
    for (size_t i = first_after(a, b[0].begin), j = first_after(b, a[0].begin);
         i < a.size() && j < b.size();) {
        const Interval both{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
        if (both.begin < both.end) result.push_back(both);
        a[i].end < b[j].end ? ++i : ++j;
    }
    return result;
}

Intervals without(const Intervals& a, const Intervals& b) {
    Intervals result;
    size_t j = 0;
    for (Interval rest : a) {
        while (j < b.size() && b[j].end <= rest.begin) ++j;
        for (size_t k = j; k < b.size() && b[k].begin < rest.end; ++k) {
            if (rest.begin < b[k].begin) result.push_back({rest.begin, b[k].begin});
            rest.begin = std::max(rest.begin, b[k].end);
        }
        if (rest.begin < rest.end) result.push_back(rest);
    }
    return result;
}

double length(const Intervals& all) {
    double sum = 0;
    for (const Interval& i : all) sum += i.end - i.begin;
    return sum;
}

Intervals exposed(const StreamTimes& times) {
    const Intervals work = without(merged_intervals(times.optimizer), merged_intervals(times.exchanges));
    return without(common(merged_intervals(times.idle), merged_intervals(times.collectives)), work);
}

}  // namespace speedrun
