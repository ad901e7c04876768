// Reads a parameter's f32 values from all ranks that hold shards.
#pragma once

#include "train/sharding/reducer.h"

namespace speedrun {

// Communication with the ranks that hold the rest.
struct MasterPeers {
    Reducer& reducer;                // shards
    Communicator* tensor = nullptr;  // ranks of the tensor axis, on the compute stream
};

// Copies to host memory of p.whole_numel() elements. Collective. Waits.
void read_master(const Parameter& p, const ParameterStore& parameters, const MasterPeers& peers,
                 Runtime& runtime, float* host);

}  // namespace speedrun
