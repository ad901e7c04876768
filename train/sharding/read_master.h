// A parameter's f32 values, whoever of the ranks holds them.
#pragma once

#include "train/sharding/reducer.h"

namespace speedrun {

// Into host memory of p.numel() numbers. All ranks ask for the same. Waits.
void read_master(const Parameter& p, const ParameterStore& parameters, Reducer& reducer, Runtime& runtime,
                 float* host);

}  // namespace speedrun
