// What `plan --gpu --search` says: which ways of sharing a step are predicted to be fast.
#pragma once

#include "train/commands/commands.h"
#include "train/config/config.h"

namespace speedrun {

// For a config of one stage, on so many ranks.
int print_search(const PlanOptions& options, const Config& stage, int num_ranks);

}  // namespace speedrun
