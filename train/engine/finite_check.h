// Checks that all parameters are finite.
#pragma once

#include <string>

#include "train/engine/train_state.h"

namespace speedrun {

// Returns "NAME (2 of 64 values are not finite)" of the first such parameter in the table; empty if all are finite. Collective.
// Waits.
std::string first_bad_parameter(TrainState& state);

// Throws Error(diverged) with the name of the first bad parameter if one is not finite after `steps` steps. Collective, between
// steps. Waits.
void expect_finite_parameters(TrainState& state, int64_t steps);

}  // namespace speedrun
