// The weights that a path names: of a run, a checkpoint or the transformers library.
#pragma once

#include <cstdint>
#include <string>

namespace speedrun {

struct WeightSource {
    enum class Kind : uint8_t { checkpoint, final_weights, transformers };
    Kind kind;
    std::string folder;    // of the weights
    std::string run = {};  // run folder; empty: the weights are outside of one
    int64_t step = -1;     // -1: unknown
};

// `path` is one of
//   a run's folder           its newest checkpoint, or its final weights if they have a later step
//   a checkpoint
//   RUN/checkpoints/final    final weights
//   a folder of the transformers library: config.json without checkpoints and data.json
// Throws a usage error for other paths and for a run without weights, and a data error for a damaged summary.json.
WeightSource find_weights(const std::string& path);

}  // namespace speedrun
