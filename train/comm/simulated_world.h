// A world with the speed of a given network. It runs each collective of another world and then sleeps on the stream for the
// network's time. Used to test schedules and to measure overlap on one host.
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
    // An additional random wait, uniform in [0, jitter_s), seeded by (seed, rank, communicator, call): varies the order of
    // events.
    double jitter_s = 0;
    uint64_t seed = 1;
};

// Returns the simulated network of section `parallel`; nullopt if it has none.
std::optional<SimulatedNetwork> simulated_network(const ParallelConfig& config);

// Waits for the time of one collective, on the thread of its stream.
using PassTime = std::function<void(std::chrono::duration<double>)>;
void sleep_for(std::chrono::duration<double> time);

// `world` must outlive the result. Host exchanges take no extra time.
std::unique_ptr<World> make_simulated_world(World& world, const SimulatedNetwork& network,
                                            PassTime pass_time = sleep_for);

}  // namespace speedrun
