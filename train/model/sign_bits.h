// Fixed rows of random ±1, which are not parameters.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

struct SignSizes {
    int64_t rows, columns, first_column = 0;
};

// Returns bits (rows)(⌈columns/32⌉) in the layout of op::RowSigns::bits, for `columns` columns from first_column. A set
// bit is the sign −1, with probability 1/2. Signs depend only on row and column, so learned tables fit every run, with
// any seed, width and mesh. Bits after the last column are 0.
std::vector<int32_t> sign_bits(const SignSizes& sizes);

}  // namespace speedrun
