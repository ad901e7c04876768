// The elements of a tensor that a checkpoint piece holds, and their notation in the piece's name:
//   "master/x"                all elements;
//   "master/x[512:1024]"      elements 512 … 1023 of the flattened tensor;
//   "master/x[0:64,16:32]"    rows 0 … 63 and columns 16 … 31 of a matrix.
// Names are read from files and therefore validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/parameters/range.h"

namespace speedrun {

// Throws an internal error for a box without a name: several rows that are not a submatrix of this shape.
std::string piece_name(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box);
// Shape of the piece alone: the tensor's, [count] or [rows,columns].
std::vector<int64_t> piece_shape(const std::vector<int64_t>& shape, const Box& box);

struct PieceName {
    std::string tensor;
    std::vector<Range> ranges;  // empty: whole tensor; one: flattened; two: rows and columns
};
PieceName parse_piece_name(const std::string& name);
// Returns nullopt if a tensor of this shape lacks some of the elements. The shape's product must fit an int64.
std::optional<Box> box_of(const PieceName& name, const std::vector<int64_t>& shape);

// Common elements of two boxes, ascending: `count` elements at offsets into each box, whose rows are stored
// consecutively.
struct Overlap {
    int64_t in_first, in_second, count;
};
std::vector<Overlap> overlaps_of(const Box& first, const Box& second);

// Elements 0 … reached - 1 are each in exactly one box; element `reached` is in none, or in two if `twice`.
struct Coverage {
    int64_t reached = 0;
    bool twice = false;
};
Coverage coverage_of(const std::vector<Box>& boxes);

}  // namespace speedrun
