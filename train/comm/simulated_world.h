// A world whose communicators are as slow as a given network: each collective of another world, followed by
// the time that the network would take, spent asleep on the stream. For tests of schedules, and for measuring
// overlap on one host.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "train/comm/communicator.h"
#include "train/config/config.h"

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

// Lets the time of one collective pass, on the thread of its stream.
using PassTime = std::function<void(std::chrono::duration<double>)>;
void sleep_for(std::chrono::duration<double> time);

// `world` must outlive the result. Exchanges of the host take no extra time.
std::unique_ptr<World> make_simulated_world(World& world, const SimulatedNetwork& network,
                                            PassTime pass_time = sleep_for);

}  // namespace speedrun
