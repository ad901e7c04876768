// Positions of a context slice's visible keys among the keys gathered from other ranks.
#pragma once

#include "data/columns/column.h"
#include "data/kept_keys.h"

namespace speedrun {

struct KeyPositions {
    int64_t window;  // most keys that a query sees; 0: all
    KeptKeys kept;
};

// Column "place in window N": index of the last visible key within the kept keys of the token's row.
Column last_key_column(const KeyPositions& places);
// Column "first_key in window N": index of the first visible key within the kept keys of all rows.
Column first_kept_key_column(const KeyPositions& places);

}  // namespace speedrun
