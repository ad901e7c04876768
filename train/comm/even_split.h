// EvenSplit: divides `count` items (rows of dimension 0, elements of a buffer) into `parts` contiguous ranges, one per rank.
// Every part has the same padded size, count / parts rounded up; the last parts may be short or empty.
#pragma once

#include <algorithm>
#include <cstdint>

namespace speedrun {

struct EvenSplit {
    int64_t count = 0;
    int64_t parts = 1;

    int64_t per_part() const { return (count + parts - 1) / parts; }
    int64_t padded() const { return per_part() * parts; }
    int64_t padding() const { return padded() - count; }
    int64_t begin(int64_t part) const { return std::min(part * per_part(), count); }
    int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }  // without padding
};

}  // namespace speedrun
