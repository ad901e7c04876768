// Lanes of a vector, and the valid lanes at the end of a row.
#pragma once

#include <cstdint>

namespace speedrun::cpu {

constexpr int64_t kLanes = 16;

// All lanes, or the first `count` at the end of a row: invalid lanes load as 0 and are not stored.
struct Full {};
struct Part {
    int64_t count;
};

}  // namespace speedrun::cpu
