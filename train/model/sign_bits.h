// Fixed signs: rows of random ±1 that are no parameter.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

struct SignSizes {
    int64_t rows, columns, first_column = 0;
};

// (rows)(⌈columns/32⌉) as op::RowSigns::bits has them, of so many columns from the first on, each sign −1 with probability 1/2. They are a function of row and
// column alone, as the rows of hashed n-grams are of tokens: what a run learned fits the signs of every other run, whatever
// its seed, width and mesh. Bits behind the last column are 0.
std::vector<int32_t> sign_bits(const SignSizes& sizes);

}  // namespace speedrun
