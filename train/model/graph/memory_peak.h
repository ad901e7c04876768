// Contents of shared memory (first_fit.h) at its peak.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/program.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

struct NamedBuffer {
    std::string kind;  // name shared by storages of several units, such as "activated"
    BufferRequest request;
};

struct MemoryPeak {
    struct Kind {
        std::string name;
        int count = 0;
        int64_t bytes = 0;  // sum over all of them
    };
    int number = -1;          // first step at the peak; −1: no storages
    std::string name;         // program instruction at the peak, from memory_peak_of()
    int64_t bytes = 0;        // memory in use at that step: lower bound of any placement
    std::vector<Kind> kinds;  // kinds in use at that step, largest first, ties by name
};

MemoryPeak memory_peak(const std::vector<NamedBuffer>& requests);

// Returns the step of a program with the most bytes in use in the shared memory. A kind is a value's name without the
// unit's prefix.
MemoryPeak memory_peak_of(const Program& program, const NodeGraph& graph);

}  // namespace speedrun
