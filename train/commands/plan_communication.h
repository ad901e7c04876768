// What `plan` says of communication.
#pragma once

#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// Prints what the ranks send each other in an optimizer step of a config of one stage: when, over which of them, and
// how much. values: in a microbatch, between the nodes of the model.
void print_communication(const Config& config, const Ranks& ranks, DType compute,
                         const CollectiveRow& values);

}  // namespace speedrun
