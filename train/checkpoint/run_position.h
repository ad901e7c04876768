// The position of a run in its schedule and data, which follows from its config and the number of steps.
#pragma once

#include <string>

#include "train/checkpoint/checkpoint_info.h"
#include "train/config/config.h"

namespace speedrun {

// Sets step, tokens, next_row, seed and next_lr_factor to the values of a run of this config after `steps` steps.
void set_position(CheckpointInfo& info, const Config& config, int64_t steps);

// Throws a data error if the position is not one of this config's run. It names `path`, the key, its value and the expected
// one.
void check_position(const CheckpointInfo& info, const Config& config, const std::string& path);

}  // namespace speedrun
