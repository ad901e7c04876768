// Memory that values share because they do not live at the same time.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Needed from step `first` to step `last`, both included.
struct Lodger {
    int64_t bytes = 0;
    int first = 0, last = 0;
};

struct Lodging {
    std::vector<int64_t> offset;  // bytes, by lodger
    int64_t bytes = 0;            // in all
    // What must be there at the busiest step: no placement needs less.
    int64_t least = 0;
};

// First fit, the largest first, or the earliest first where that needs less. Offsets are multiples of
// `alignment`.
Lodging first_fit(const std::vector<Lodger>& lodgers, int64_t alignment);

}  // namespace speedrun
