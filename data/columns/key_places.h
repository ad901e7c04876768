// Places of the keys that a token of a context part sees, among keys that were gathered from other ranks.
#pragma once

#include "data/columns/column.h"
#include "data/kept_keys.h"

namespace speedrun {

struct KeyPlaces {
    int64_t window;  // keys that a query sees; 0: all
    KeptKeys kept;
};

// Column "place in window N": index of the last visible key within the kept keys of the token's row.
Column last_key_column(const KeyPlaces& places);
// Column "first_key in window N": index of the first visible key within the kept keys of all rows.
Column first_kept_key_column(const KeyPlaces& places);

}  // namespace speedrun
