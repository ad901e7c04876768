// Visits elements of a tensor rank's part of a parameter.
#pragma once

#include "train/parameters/parameter_table.h"

namespace speedrun::testing {

// Calls visit(index in `in_slice`, index in the whole parameter) for each element without padding.
template <class Visit>
void each_element(const Parameter& p, const Range& in_slice, Visit&& visit) {
    int64_t at = 0;
    for (const Range& range : contiguous_ranges(p.boxes(in_slice)))
        for (int64_t i = range.begin; i < range.end(); ++i) visit(at++, i);
}

}  // namespace speedrun::testing
