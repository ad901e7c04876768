// Counts of values that are not finite.
#pragma once

#include "train/sharding/parameter_store.h"

namespace speedrun {

// Returns the number of non-finite values in this rank's shards of all masters. Waits.
double count_nonfinite_masters(const ParameterStore& parameters, Runtime& runtime);

// Returns the number of non-finite values in p's compute copy, which must be whole on this rank, after the work of the
// gather stream. Waits.
double count_nonfinite(const Parameter& p, const ParameterStore& parameters, Runtime& runtime);

}  // namespace speedrun
