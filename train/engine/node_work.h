// FLOPs and bytes of each kind of node of the model.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/sharding/ranks.h"

namespace speedrun {

struct NodeWork {
    struct Pass {
        int64_t flops = 0;  // FLOPs of matmuls and attention, as counted by Ops::flops()
        int64_t bytes = 0;  // lower bound: each operand read once, each result written once
        int64_t steps = 0;  // program instructions
    };
    std::string name;                  // Node::describe(); "a + b" for a fusion of both
    Pass forward = {}, backward = {};  // per optimizer step and rank; backward includes recomputation
};

// Returns the work of one of these ranks, for a config of one stage. Nodes with equal descriptions share a row, in
// order of forward; then the work of backward between nodes. Counted while a step runs on a device that computes
// nothing.
std::vector<NodeWork> node_work(const Config& config, const Ranks& ranks);

}  // namespace speedrun
