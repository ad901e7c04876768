// What the files of the conformance cases share, and the cases that are not in conformance.cpp.
#pragma once

#include "train/comm/communicator.h"
#include "train/comm/mesh.h"

namespace speedrun::testing {

constexpr AxisSet kEverybody{Axis::replicate, Axis::shard};

inline Mesh flat_mesh(const World& world) {
    return Mesh({1, world.size(), 1, 1});
}

// Two replicas where that is possible.
inline Mesh square_mesh(const World& world) {
    const int replicas = world.size() % 2 == 0 ? 2 : 1;
    return Mesh({replicas, world.size() / replicas, 1, 1});
}

// conformance_together.cpp
void groups_and_streams_at_once(World& world);
void later_launch_completes_first(World& world);
void barrier_waits_for_all(World& world);
void host_exchanges(World& world);

}  // namespace speedrun::testing
