// Which numbers of a tensor a piece of a checkpoint holds, and how its name says so:
//   "master/x"                all of them,
//   "master/x[512:1024]"      these, of the flattened tensor,
//   "master/x[0:64,16:32]"    rows 0 … 64 of columns 16 … 32 of a matrix.
// Names come from files, so that nothing is taken for granted of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace speedrun {

// Flattened, the first of its rows begins at `begin`, and each one `stride` behind the one before; no two overlap.
struct TensorBox {
    int64_t begin = 0;
    int64_t rows = 1, columns = 0;
    int64_t stride = 0;

    static TensorBox run(int64_t begin, int64_t count) { return {begin, 1, count, count}; }
    int64_t count() const { return rows * columns; }
    int64_t end() const { return begin + (rows - 1) * stride + columns; }  // behind the last one
    bool operator==(const TensorBox&) const = default;
};

// Throws an internal error for a box that no name can say: several rows that are not those of a matrix of this shape.
std::string piece_name(const std::string& tensor, const std::vector<int64_t>& shape, const TensorBox& box);
// Shape of a piece by itself: the tensor's, [count] or [rows,columns].
std::vector<int64_t> piece_shape(const std::vector<int64_t>& shape, const TensorBox& box);

struct PieceName {
    struct Range {
        int64_t begin, end;
    };
    std::string tensor;
    std::vector<Range> ranges;  // none: all of it; one: flattened; two: rows and columns
};
PieceName parse_piece_name(const std::string& name);
// Nothing: a tensor of this shape, whose product is an int64, lacks some of them.
std::optional<TensorBox> box_of(const PieceName& name, const std::vector<int64_t>& shape);

// What two boxes share, ascending: `count` numbers, from these of each on, its rows written one behind the other.
struct Overlap {
    int64_t in_first, in_second, count;
};
std::vector<Overlap> overlaps_of(const TensorBox& first, const TensorBox& second);

// Numbers 0 … reached are each in one of the boxes; `reached` is in none, or in two.
struct Coverage {
    int64_t reached = 0;
    bool twice = false;
};
Coverage coverage_of(const std::vector<TensorBox>& boxes);

}  // namespace speedrun
