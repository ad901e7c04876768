// Prints `plan --gpu --search`: layouts with the shortest predicted steps.
#pragma once

#include "train/commands/commands.h"
#include "train/config/config.h"

namespace speedrun {

// For a config of one stage, on `num_ranks` ranks.
int print_search(const PlanOptions& options, const Config& stage, int num_ranks);

}  // namespace speedrun
