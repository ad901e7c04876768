// Which keys of a row attention of a part of it can see.
#pragma once

#include <cstdint>
#include <span>
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
    // How many of them are before this place: which one is the key there, or the first behind it.
    int64_t below(int64_t place) const;
    // What a query at a place sees of them: those from `first` to `last`; none where last < first.
    struct Seen {
        int64_t first, last;
    };
    // first_key: the place of the first key of the query's document.
    Seen seen(int64_t place, int64_t first_key) const;
    // Pairs of them and a query of the part that may see them, documents aside.
    int64_t visible_pairs() const;

  private:
    ContextPart part_;
    AttendedRow row_;
    std::vector<PlaceRange> ranges_;
    int64_t count_ = 0;
};

// Those of KeptKeys that queries of the part see in a row of these documents (Batch::chunk_first_keys, of one row).
std::vector<PlaceRange> needed_keys(const ContextPart& part, const AttendedRow& row,
                                    std::span<const int32_t> chunk_first_keys);

// The places of a that are not in b.
std::vector<PlaceRange> without(const std::vector<PlaceRange>& a, const std::vector<PlaceRange>& b);
// The places that are in both.
std::vector<PlaceRange> common(const std::vector<PlaceRange>& a, const std::vector<PlaceRange>& b);

}  // namespace speedrun
