// The weights that a run starts from: model.init_from.
#pragma once

#include <string>
#include <vector>

#include "data/data_identity.h"
#include "train/comm/communicator.h"
#include "train/config/config.h"
#include "train/runlog/run_origin.h"

namespace speedrun {

struct InitialWeights {
    std::vector<std::vector<float>> values;  // whole parameters; index: parameter
    RunOrigin origin;
    std::vector<std::string> warnings;
};

// Reads the weights in config.model.init_from, a path of find_weights(). A checkpoint has the masters; its files are compared with
// their hashes. A folder of the transformers library has a GPT-2.
//
// Parameters are matched by name and shape. data: identity of the new run's shards; null: not compared. Collective. Throws
// JointError on all ranks:
//   usage: parameters do not match (names each one, both shapes, and the keys of the model that differ); a path without weights
//   data: a file is missing or damaged, or the weights are for another tokenizer
//   diverged: a weight is not finite
InitialWeights read_initial_weights(World& world, const Config& config, const DataIdentity* data);

}  // namespace speedrun
