// Elements of flat memory: Range is contiguous, Box is a block of rows in a flattened tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/device/tensor.h"

namespace speedrun {

struct Range {
    int64_t begin = 0, count = 0;

    int64_t end() const { return begin + count; }
    bool operator==(const Range&) const = default;
};

inline Range common(const Range& a, const Range& b) {
    const int64_t begin = std::max(a.begin, b.begin);
    return {begin, std::max<int64_t>(0, std::min(a.end(), b.end()) - begin)};
}

// Returns these elements of a flat tensor.
inline Tensor elements(const Tensor& flat, const Range& range) {
    auto* const data = static_cast<char*>(flat.data);
    return {data ? data + range.begin * size_of(flat.dtype) : nullptr, flat.dtype, {range.count}};
}

// In the flattened tensor, row r starts at `begin` + r * `stride`. Rows do not overlap.
struct Box {
    int64_t begin = 0;
    int64_t rows = 1, columns = 0;
    int64_t stride = 0;

    static Box of(const Range& range) { return {range.begin, 1, range.count, range.count}; }
    int64_t count() const { return rows * columns; }
    int64_t end() const { return begin + (rows - 1) * stride + columns; }  // after the last element
    Range row(int64_t r) const { return {begin + r * stride, columns}; }
    bool operator==(const Box&) const = default;
};

// Returns the rows of all boxes, in order.
inline std::vector<Range> contiguous_ranges(const std::vector<Box>& boxes) {
    std::vector<Range> rows;
    for (const Box& box : boxes)
        for (int64_t r = 0; r < box.rows; ++r) rows.push_back(box.row(r));
    return rows;
}

}  // namespace speedrun
