// What `plan --gpu --timeline` says: a step of many ranks in time.
#pragma once

#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/timeline/step_timeline.h"

namespace speedrun {

Network network_of(const PlanOptions& options);

// The step of a config of one stage, as one of these ranks enqueues it.
int print_timeline(const PlanOptions& options, const Config& stage, const Ranks& ranks);

}  // namespace speedrun
