// Checks that all parameters are finite.
#pragma once

#include <string>

#include "train/engine/train_state.h"

namespace speedrun {

// Returns "NAME (2 of 64 values are not finite)" for the first such parameter in the table; empty if all are finite.
// Collective. Waits.
std::string first_bad_parameter(TrainState& state);

// Throws Error(diverged), naming the first bad parameter, if a parameter is not finite after `steps` steps. Collective.
// Call between steps. Waits.
void expect_finite_parameters(TrainState& state, int64_t steps);

}  // namespace speedrun
