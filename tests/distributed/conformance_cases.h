// Helpers of the conformance cases, and declarations of the cases outside conformance.cpp.
#pragma once

#include "train/comm/communicator.h"
#include "train/comm/mesh.h"

namespace speedrun::testing {

constexpr AxisSet kEverybody{Axis::replicate, Axis::shard};

inline Mesh flat_mesh(const World& world) {
    return Mesh({1, world.size(), 1, 1});
}

// Two replicas if the number of ranks permits.
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
