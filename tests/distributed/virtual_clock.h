// A clock that is independent of the machine's load. Every stream of a CPU device has a virtual time that starts at
// 0. Work adds its cost to the time of its stream. A wait sets the time to the event's record if that is later, a
// collective to the latest of its members. All work really runs on the streams; only streams, events and
// communicators of the device order it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "train/comm/communicator.h"

namespace speedrun::testing {

// Adds to the time of the calling stream; for make_simulated_world and for work of tests.
void pass_virtual_time(std::chrono::duration<double> time);

class VirtualClock final : public CpuClock {
  public:
    // ms of an operation by stream and label, without the virtual time that passes inside it.
    using Cost = std::function<double(const std::string& stream, const char* label)>;
    explicit VirtualClock(Cost cost = {}) : cost_(std::move(cost)) {}

    int64_t now_ns() override;
    void ran(const std::string& stream, const char* label) override;
    void waited_for(int64_t time_ns) override;

  private:
    const Cost cost_;
};

// Wraps `world`: a collective sets every member to the time of the latest. `world` must outlive the result.
std::unique_ptr<World> make_clocked_world(World& world);

}  // namespace speedrun::testing
