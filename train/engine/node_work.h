// What each kind of node of the model asks of a device.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct NodeWork {
    struct Pass {
        int64_t flops = 0;  // of products and attention, as Ops::flops() counts them
        int64_t bytes =
            0;  // the least that can be moved: each operand read once and each result written once
        int64_t steps = 0;  // of the program
    };
    std::string name;  // as Node::describe says; "a + b" where a fusion computes both
    Pass forward = {},
         backward = {};  // of one optimizer step on one rank; backward with what it computes again
};

// Of one of these ranks, for a config of one stage: nodes of the same description in one row, in the order in which
// forward meets them, then what backward does between nodes. Counted while a step runs its schedule on a device that
// computes nothing.
std::vector<NodeWork> node_work(const Config& config, const Ranks& ranks);

}  // namespace speedrun
