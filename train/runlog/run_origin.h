// origin.json of a run folder: the weights that the run started from, where they were not random.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speedrun {

struct RunOrigin {
    std::string kind;    // "weights" (model.init_from) or "checkpoint" (--resume of another run)
    std::string path;    // folder of the weights
    int64_t step = -1;   // steps of the run that wrote them; -1: unknown
    std::string xxh128;  // hash of the weights file, or of the checkpoint's XXH128SUMS
};

std::string run_origin_to_json(const RunOrigin& origin);
// Throws a data error that names `path` for other text.
RunOrigin run_origin_from_json(std::string_view text, const std::string& path);
// "weights of logs/a/checkpoints/final, step 100, XXH128 0123..."
std::string describe(const RunOrigin& origin);

}  // namespace speedrun
