// A world whose communicators are as slow as a given network: each collective of another world, followed by
// the time that the network would take, spent asleep on the stream. For tests of schedules, and for measuring
// overlap on one host.
#pragma once

#include <memory>
#include <optional>

#include "train/config/config.h"
#include "train/distributed/communicator.h"

namespace speedrun {

struct SimulatedNetwork {
    NetworkModel model;
    // A random wait on top, uniform in [0, jitter_s), from (seed, rank, communicator, call): disturbs the
    // order of events.
    double jitter_s = 0;
    uint64_t seed = 1;
};

// What section `parallel` of a config says of it; nullopt: nothing.
std::optional<SimulatedNetwork> simulated_network(const ParallelConfig& config);

// `world` must outlive the result. Exchanges of the host take no extra time.
std::unique_ptr<World> make_simulated_world(World& world, const SimulatedNetwork& network);

}  // namespace speedrun
