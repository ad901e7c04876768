// The weights that a path names: of a run, a checkpoint or the transformers library.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

struct WeightSource {
    enum class Kind : uint8_t { checkpoint, final_weights, transformers };
    Kind kind;
    std::string folder;    // holds the weights
    std::string run = {};  // run folder; empty: the weights are outside of one
    int64_t step = -1;     // -1: unknown
};

// Returns the weights of a path: a checkpoint, RUN/checkpoints/final, a run's folder, or a folder of the transformers library. A run's
// folder means its newest checkpoint, or its final weights if they have a later step. A folder of that library has config.json, no
// checkpoints and no data.json. Throws a usage error for other paths and for a run without weights, a data error for a damaged
// summary.json.
WeightSource find_weights(const std::string& path);

}  // namespace speedrun
