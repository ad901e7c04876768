// What one rank of the tensor axis has of a parameter, and where that lies in the whole one.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// A rank among those of the tensor axis, and how they share a model.
struct TensorPart {
    int size = 1, index = 0;
    bool sequence = false;  // outside of matrices each has its share of the tokens

    bool operator==(const TensorPart&) const = default;
};

// Where dimension 0 counts `stacked` things in a row, each of them is cut by itself.
struct TensorCut {
    int dimension = 0;         // that is cut
    int parts = 1, index = 0;  // equal parts, and which of them this is; 1 part: all of it
    int64_t stacked = 1;       // along dimension 0
    int64_t whole = 0;         // size of the dimension in the whole parameter; 0: as many as all parts have

    bool all() const { return parts == 1; }
    bool operator==(const TensorCut&) const = default;
};

// Elements of a part, flattened: rows x columns of them from in_part on, in a row; in the whole parameter, also flattened,
// the first row begins at in_whole, and each one `stride` behind the one before.
struct Box {
    int64_t in_part, in_whole;
    int64_t rows, columns, stride;

    int64_t count() const { return rows * columns; }
};

// Where elements first … first + count of a part of this shape lie: three boxes at most, ascending, and one of one row
// where nothing is cut; none of padding, with which the last parts of a whole that is no multiple of them end. Throws an
// internal error for elements that it does not have.
struct PartRange {
    int64_t first, count;
};
std::vector<Box> boxes_of(const std::vector<int64_t>& shape, const TensorCut& cut, const PartRange& range);

}  // namespace speedrun
