// Rows of a value that travel between ranks in pieces, so that work on one goes on while the next is under way.
#pragma once

#include <cstdint>

namespace speedrun {

struct RowSpan {
    int64_t first = 0, count = 0;
};

// Each of `shares` equal parts of the rows is cut into `pieces`; piece i is the i-th of every share. Sizes differ by a row
// where they do not divide.
struct RowPieces {
    int64_t rows = 0;
    int64_t shares = 1, pieces = 1;

    int64_t share() const { return rows / shares; }
    struct At {
        int64_t piece, of_share = 0;
    };
    RowSpan span(const At& at) const {
        const auto [piece, of_share] = at;
        const int64_t begin = share() * piece / pieces, end = share() * (piece + 1) / pieces;
        return {of_share * share() + begin, end - begin};
    }
    int64_t rows_of(int64_t piece) const { return shares * span({piece}).count; }
    int64_t most_rows() const { return shares * ((share() + pieces - 1) / pieces); }
};

// What a node sends in one pass: rows that it reads leave in the pieces `from`, and are what it writes when they have come
// in the pieces `to`, of which there are as many.
struct Transfer {
    RowPieces from, to;
};

}  // namespace speedrun
