// Keys of a row that the queries of one context slice can see.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/context_slice.h"

namespace speedrun {

struct PositionRange {
    int64_t begin = 0, end = 0;  // positions in a row
    int64_t count() const { return end - begin; }
};

// Returns the positions of a part's chunks: two, ascending, without padding; for a single rank the whole row.
std::vector<PositionRange> chunks_of(const ContextSlice& part, int64_t sequence_length);

struct AttendedRow {
    int64_t sequence_length = 0;
    int64_t window = 0;  // most keys that a query sees, including its own; 0: all before it
};

// Upper bound of the keys that queries of a part see, for any documents: each chunk's own keys, and the keys before it
// within the window (all if window is 0). Kept keys are stored consecutively, as a shorter row.
class KeptKeys {
  public:
    KeptKeys(const ContextSlice& part, const AttendedRow& row);

    int64_t count() const { return count_; }
    const std::vector<PositionRange>& ranges() const {
        return ranges_;
    }  // ascending, disjoint and not adjacent
    // Lower bound: index of the first kept key at or after `place`.
    int64_t below(int64_t place) const;
    // Kept keys that a query sees: indices first … last; none if last < first.
    struct Visible {
        int64_t first, last;
    };
    // first_key: position of the first key of the query's document.
    Visible visible(int64_t place, int64_t first_key) const;
    // Returns the number of pairs of a query of the part and a kept key that it may see, ignoring documents.
    int64_t visible_pairs() const;

  private:
    ContextSlice part_;
    AttendedRow row_;
    std::vector<PositionRange> ranges_;
    int64_t count_ = 0;
};

// Returns the kept keys that queries of the part see in a row with these documents (Batch::chunk_first_keys of one
// row).
std::vector<PositionRange> needed_keys(const ContextSlice& part, const AttendedRow& row,
                                       std::span<const int32_t> chunk_first_keys);

// Positions in a that are not in b.
std::vector<PositionRange> without(const std::vector<PositionRange>& a, const std::vector<PositionRange>& b);
// Positions in both.
std::vector<PositionRange> common(const std::vector<PositionRange>& a, const std::vector<PositionRange>& b);

}  // namespace speedrun
