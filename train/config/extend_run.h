// A run that continues with more steps than it began with (train --extend-to).
#pragma once

#include <string>

#include "train/config/config.h"

namespace speedrun {

// Returns the config of a run of `total_steps` steps: its last stage ends there, and with it the cooldown and final_steps.
// Throws a usage error if the schedule does not fit.
Config extend_config(Config config, int64_t total_steps);

// Returns the first step before `steps` at which learning rate, momentum or last update of the two configs
// differ, or `steps`.
int64_t first_difference(const Config& before, const Config& after, int64_t steps);

// Throws a usage error, which begins with `name`, if a run cannot go on with the longer schedule after this step: its data
// would be read in another order.
void expect_extendable(const Config& before, const Config& after, int64_t step, const std::string& name);

}  // namespace speedrun
