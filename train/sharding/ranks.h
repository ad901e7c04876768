// Who we are among the ranks of a run, and how they share the work: what the engine needs to know of it.
#pragma once

#include "train/comm/communicator.h"
#include "train/comm/mesh.h"
#include "train/sharding/placement.h"

namespace speedrun {

struct Ranks {
    World* world = nullptr;  // null: one rank, alone (tests, plan); must outlive what is built on it
    Mesh mesh;
    ParallelPlan plan;  // resolved

    int rank() const { return world ? world->rank() : 0; }
    int size() const { return world ? world->size() : 1; }
    bool first() const { return rank() == 0; }
    // Ranks that work on different tokens: all of them, while context and tensor are 1.
    int num_data_ranks() const { return mesh.size(Axis::replicate) * mesh.size(Axis::shard); }
    int data_rank() const { return rank() / (mesh.size(Axis::context) * mesh.size(Axis::tensor)); }
};

}  // namespace speedrun
