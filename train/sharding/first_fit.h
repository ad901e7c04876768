// First-fit assignment of buffers with disjoint lifetimes to shared memory: gathered parameters, gradients,
// activations.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Steps first … last, inclusive.
struct Lifetime {
    int first = 0, last = 0;
};

struct BufferRequest {
    int64_t bytes = 0;
    int first = 0, last = 0;   // lifetime: steps first … last, inclusive
    Lifetime again = {0, -1};  // second lifetime; empty if last < first
};

struct BufferAssignment {
    std::vector<int64_t> offset;  // bytes; index: buffer
    int64_t bytes = 0;            // total size
};

// Places buffers first fit, in order of their first step, or largest first if that needs less memory. Offsets are
// multiples of `alignment`. Throws an internal error for negative bytes or an empty first lifetime.
BufferAssignment first_fit(const std::vector<BufferRequest>& requests, int64_t alignment);

}  // namespace speedrun
