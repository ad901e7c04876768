// Part of a parameter on one tensor rank, and its location in the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "train/parameters/range.h"

namespace speedrun {

// A rank of the tensor axis, and how the axis splits a model.
struct TensorSlice {
    int size = 1, index = 0;
    bool sequence = false;  // sequence parallelism: each rank has a share of the tokens outside of matrices

    bool operator==(const TensorSlice&) const = default;
};

struct TensorCut {
    int dimension = 0;         // dimension that is cut
    int parts = 1, index = 0;  // equal parts, and this rank's index; 1: not cut
    // Rows of each stack in this part, along dimension 0, cut or not. Each stack is cut separately. Empty: one stack.
    std::vector<int64_t> stacks = {};
    int64_t whole = 0;  // size of the dimension in the whole parameter; 0: the sum of all parts

    bool all() const { return parts == 1; }
    bool operator==(const TensorCut&) const = default;
};

// Returns the location of a part's elements in the whole parameter, ascending: a box per stack of rows, or at most three
// boxes of columns. Their elements are consecutive in the part. An uncut parameter has one box of one row. Padding at the
// end of the last parts has no box. Throws an internal error for elements outside the part.
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, const TensorCut& cut, const Range& in_slice);

}  // namespace speedrun
