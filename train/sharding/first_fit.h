// Memory that is shared by what does not live at the same time: gathered parameters, gradients in flight,
// activations.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// From step `first` to step `last`, both included.
struct Lifetime {
    int first = 0, last = 0;
};

struct Lodger {
    int64_t bytes = 0;
    int first = 0, last = 0;   // steps at which it is needed, both included
    Lifetime again = {0, -1};  // and a second time; none where it ends before it begins
};

struct Lodging {
    std::vector<int64_t> offset;  // bytes, by lodger
    int64_t bytes = 0;            // in all
};

// First fit, the earliest first, or the largest first where that needs less. Offsets are multiples of
// `alignment`. Throws an internal error for negative bytes, and for a first time that ends before it begins.
Lodging first_fit(const std::vector<Lodger>& lodgers, int64_t alignment);

}  // namespace speedrun
