// Which keys of a row attention of a part of it can see.
#pragma once

#include <cstdint>
#include <vector>

#include "data/context_part.h"

namespace speedrun {

struct PlaceRange {
    int64_t begin = 0, end = 0;  // places in a row
    int64_t count() const { return end - begin; }
};

// The places of a part's chunks: two, ascending, without padding; of one rank alone the row.
std::vector<PlaceRange> chunks_of(const ContextPart& part, int64_t sequence_length);

struct AttendedRow {
    int64_t sequence_length = 0;
    int64_t window = 0;  // keys that a query sees at most, itself included; 0: all before it
};

// The keys that queries of a part see at most, whatever the documents: of a chunk its own, and those before it that
// the window reaches (all of them where window is 0). They are kept one behind the other, as a shorter row.
class KeptKeys {
  public:
    KeptKeys(const ContextPart& part, const AttendedRow& row);

    int64_t count() const { return count_; }
    const std::vector<PlaceRange>& ranges() const { return ranges_; }  // ascending, apart from each other
    // Which of them is the key at this place, or the first behind it; at most the last one. Within a window the
    // distance of two kept keys is that of their places.
    int64_t index(int64_t place) const;

  private:
    std::vector<PlaceRange> ranges_;
    int64_t count_ = 0;
};

// The places that are in both.
std::vector<PlaceRange> common(const std::vector<PlaceRange>& a, const std::vector<PlaceRange>& b);

}  // namespace speedrun
