#include "tests/distributed/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/comm/host_task.h"
#include "train/comm/wrapped_world.h"

namespace speedrun::testing {

namespace {

thread_local double now_ms = 0;  // of the stream whose thread this is

// Exchanges the members' times through a communicator of its own, so that the counts of the other are those
// of the calls made through it.
class ClockedCommunicator final : public Communicator {
  public:
    ClockedCommunicator(std::unique_ptr<Communicator> inner, std::unique_ptr<Communicator> times)
        : Communicator(inner->name(), inner->group()), inner_(std::move(inner)), times_(std::move(times)) {}

    CollectiveCounts counts() const override { return inner_->counts(); }

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        enqueue_on_host(stream, "arrive", [this] { latest_ms_ = static_cast<float>(now_ms); });
        times_->all_reduce(Tensor(&latest_ms_, DType::f32, {1}), stream, Reduction::max);
        enqueue_on_host(stream, "begin", [this] { now_ms = latest_ms_; });
        inner_->count_and_enqueue(call, stream);
    }

    const std::unique_ptr<Communicator> inner_, times_;
    float latest_ms_ = 0;
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
    now_ms += std::chrono::duration<double, std::milli>(time).count();
}

void ClockedStream::work(double ms) {
    enqueue_on_host(*stream_, "work", [ms] { now_ms += ms; });
}

void ClockedStream::record(ClockedEvent& event) {
    event.ms_ = std::make_shared<double>(std::numeric_limits<double>::quiet_NaN());
    enqueue_on_host(*stream_, "note the time", [time = event.ms_] { *time = now_ms; });
    stream_->record(*event.event_);
}

void ClockedStream::wait(const ClockedEvent& event) {
    if (!event.ms_) return;  // no wait, as Event says
    stream_->wait(*event.event_);
    enqueue_on_host(*stream_, "take the time", [this, time = event.ms_] {
        if (std::isnan(*time)) throw_internal("stream {} did not wait for an event", stream_->name());
        now_ms = std::max(now_ms, *time);
    });
}

std::unique_ptr<World> make_clocked_world(World& world) {
    return std::make_unique<ClockedWorld>(world);
}

}  // namespace speedrun::testing
