// Communication as printed by `plan`.
#pragma once

#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// Prints the communication in an optimizer step of a config of one stage: times, groups and sizes. values: collectives of a
// microbatch between the nodes of the model.
void print_communication(const Config& config, const Ranks& ranks, DType compute,
                         const BucketCollectives& values);

}  // namespace speedrun
