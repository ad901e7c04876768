#include "tests/distributed/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/comm/host_task.h"
#include "train/comm/wrapped_world.h"

namespace speedrun::testing {

namespace {

thread_local int64_t now = 0;  // ns, of this thread's stream

// Exchanges the members' times through a separate communicator, so that `inner` counts only the calls of its user.
class ClockedCommunicator final : public Communicator {
  public:
    ClockedCommunicator(std::unique_ptr<Communicator> inner, std::unique_ptr<Communicator> times)
        : Communicator(inner->name(), inner->group()),
          inner_(std::move(inner)),
          times_(std::move(times)),
          arrived_(static_cast<size_t>(times_->size())) {}

    CollectiveCounts counts() const override { return inner_->counts(); }

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        enqueue_on_host(stream, "arrive", [this] { own_ = now; });
        // A gather copies bits, so int64 times can pass as f32.
        const auto words = [](int64_t* times, int64_t count) {
            return Tensor(times, DType::f32, {2 * count});
        };
        times_->all_gather(words(arrived_.data(), times_->size()), words(&own_, 1), stream);
        enqueue_on_host(stream, "barrier",
                        [this] { now = *std::max_element(arrived_.begin(), arrived_.end()); });
        inner_->count_and_enqueue(call, stream);
    }

    const std::unique_ptr<Communicator> inner_, times_;
    int64_t own_ = 0;
    std::vector<int64_t> arrived_;  // index: member
};

class ClockedWorld final : public WrappedWorld {
  public:
    using WrappedWorld::WrappedWorld;
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        auto communicator = inner_.connect(name, group);
        return std::make_unique<ClockedCommunicator>(std::move(communicator),
                                                     inner_.connect(name + "'s times", group));
    }
};

}  // namespace

void pass_virtual_time(std::chrono::duration<double> time) {
    now += std::llround(time.count() * 1e9);
}

int64_t VirtualClock::now_ns() {
    return now;
}

void VirtualClock::ran(const std::string& stream, const char* label) {
    if (cost_) now += std::llround(cost_(stream, label) * 1e6);
}

void VirtualClock::waited_for(int64_t time_ns) {
    now = std::max(now, time_ns);
}

std::unique_ptr<World> make_clocked_world(World& world) {
    return std::make_unique<ClockedWorld>(world);
}

}  // namespace speedrun::testing
