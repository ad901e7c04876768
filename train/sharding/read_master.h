// A parameter's values in f32, whoever of the ranks holds them.
#pragma once

#include "train/sharding/reducer.h"

namespace speedrun {

// Who has the rest of it.
struct MasterPeers {
    Reducer& reducer;                // shards
    Communicator* tensor = nullptr;  // parts that the tensor axis cuts, on the stream of compute
};

// Into host memory of p.whole_numel() numbers. All ranks ask for the same. Waits.
void read_master(const Parameter& p, const ParameterStore& parameters, const MasterPeers& peers,
                 Runtime& runtime, float* host);

}  // namespace speedrun
