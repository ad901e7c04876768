// What `speedrun plan --gpu` prints: a modelled step of one stage, operation by operation, and the time of the whole run.
#pragma once

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/sharding/ranks.h"

namespace speedrun {

// Usage error, naming those known, where there is no model of options.gpu; data error for options.measured.
// Returns the exit code.
int print_gpu_plan(const PlanOptions& options, const Config& config, const Ranks& ranks);

}  // namespace speedrun
