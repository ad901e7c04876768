// A clock that load on the machine does not move. Every stream of a CPU device has a virtual time of its own,
// begun at 0: work on a stream adds what it is said to take, a wait sets it to the time of the event's record
// if that is later, a collective to the latest of its members. All of it really runs on the streams, ordered
// by nothing but the device's streams, events and communicators.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "train/comm/communicator.h"

namespace speedrun::testing {

// Adds to the time of the stream whose thread calls: for make_simulated_world and for work of tests.
void pass_virtual_time(std::chrono::duration<double> time);

class VirtualClock final : public CpuClock {
  public:
    // ms that a piece of work takes, by stream and label, beside what passes inside it.
    using Cost = std::function<double(const std::string& stream, const char* label)>;
    explicit VirtualClock(Cost cost = {}) : cost_(std::move(cost)) {}

    int64_t now_ns() override;
    void ran(const std::string& stream, const char* label) override;
    void waited_for(int64_t time_ns) override;

  private:
    const Cost cost_;
};

// `world`, whose collectives leave every member at the time of the latest; `world` must outlive the result.
std::unique_ptr<World> make_clocked_world(World& world);

}  // namespace speedrun::testing
