// Targets beyond the next token.
#pragma once

#include "data/batch.h"

namespace speedrun {

// Fills batch.further_targets for num_targets ≥ 1 targets a token, the next one included, from the batch's targets and
// positions: the k-th further target of a token is the target of the token k behind it in its row, -1 where the row has
// ended. Memory is reused.
void add_further_targets(Batch& batch, int64_t num_targets);

}  // namespace speedrun
