// How many floats a vector has, and how many of them are real.
#pragma once

#include <cstdint>

namespace speedrun::cpu {

constexpr int64_t kLanes = 16;

// All lanes, or the first `count` at the end of a row: the rest loads as 0 and is not stored.
struct Full {};
struct Part {
    int64_t count;
};

}  // namespace speedrun::cpu
