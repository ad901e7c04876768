// Prints `speedrun plan --gpu`: a modelled step of one stage, operation by operation, and the time of the whole run.
#pragma once

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/sharding/ranks.h"

namespace speedrun {

// Usage error, with the known names, if options.gpu has no model; data error for options.measured. Returns the exit code.
int print_gpu_plan(const PlanOptions& options, const Config& config, const Ranks& ranks);

}  // namespace speedrun
