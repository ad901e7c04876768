// Range of a tensor's elements that a checkpoint piece holds, and its notation in the piece's name:
//   "master/x"                all elements;
//   "master/x[512:1024]"      elements 512 … 1023 of the flattened tensor;
//   "master/x[0:64,16:32]"    rows 0 … 63 and columns 16 … 31 of a matrix.
// Names are read from files and therefore validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace speedrun {

// In the flattened tensor, row r starts at `begin` + r * `stride`. Rows do not overlap.
struct TensorBox {
    int64_t begin = 0;
    int64_t rows = 1, columns = 0;
    int64_t stride = 0;

    static TensorBox run(int64_t begin, int64_t count) { return {begin, 1, count, count}; }
    int64_t count() const { return rows * columns; }
    int64_t end() const { return begin + (rows - 1) * stride + columns; }  // after the last element
    bool operator==(const TensorBox&) const = default;
};

// Throws an internal error for a box without a name: several rows that are not a submatrix of this shape.
std::string piece_name(const std::string& tensor, const std::vector<int64_t>& shape, const TensorBox& box);
// Shape of the piece alone: the tensor's, [count] or [rows,columns].
std::vector<int64_t> piece_shape(const std::vector<int64_t>& shape, const TensorBox& box);

struct PieceName {
    struct Range {
        int64_t begin, end;
    };
    std::string tensor;
    std::vector<Range> ranges;  // empty: whole tensor; one: flattened; two: rows and columns
};
PieceName parse_piece_name(const std::string& name);
// Returns nullopt if a tensor of this shape lacks some of the elements. The shape's product must fit an int64.
std::optional<TensorBox> box_of(const PieceName& name, const std::vector<int64_t>& shape);

// Common elements of two boxes, ascending: `count` elements at offsets into each box, whose rows are stored
// consecutively.
struct Overlap {
    int64_t in_first, in_second, count;
};
std::vector<Overlap> overlaps_of(const TensorBox& first, const TensorBox& second);

// Elements 0 … reached - 1 are each in exactly one box; element `reached` is in none, or in two if `twice`.
struct Coverage {
    int64_t reached = 0;
    bool twice = false;
};
Coverage coverage_of(const std::vector<TensorBox>& boxes);

}  // namespace speedrun
