// What lies in shared memory (first_fit.h) when most does.
#pragma once

#include <string>
#include <vector>

#include "train/model/graph/program.h"
#include "train/sharding/first_fit.h"

namespace speedrun {

struct NamedLodger {
    std::string kind;  // what lodgers of several units have in common, such as "activated"
    Lodger lodger;
};

struct BusiestStep {
    struct Kind {
        std::string name;
        int count = 0;
        int64_t bytes = 0;  // of all of them
    };
    int number = -1;          // the first at which there is most; −1: there are no lodgers
    std::string name;         // what runs then, where a program is asked for it
    int64_t bytes = 0;        // there at that step: no placement needs less
    std::vector<Kind> kinds;  // that have bytes there: what takes most first, equals by name
};

BusiestStep busiest_step(const std::vector<NamedLodger>& lodgers);

// The step of a program at which most of the memory that its storages share is taken; a kind is the name
// without the unit's prefix.
BusiestStep busiest_step_of(const Program& program, const NodeGraph& graph);

}  // namespace speedrun
