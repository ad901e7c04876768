// A clock that load on the machine does not move. Every stream has a virtual time of its own, kept by the
// stream's thread and begun at 0: work on a stream adds what it is said to take, a wait sets it to the time
// of the event's record if that is later, a collective to the latest of its members. All of it happens in
// tasks that really run on the streams, ordered by nothing but the device's streams, events and
// communicators.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "train/comm/communicator.h"

namespace speedrun::testing {

// Adds to the time of the stream whose thread calls: for make_simulated_world.
void pass_virtual_time(std::chrono::duration<double> time);

// An event of the device, with the virtual time of its latest record.
class ClockedEvent {
  public:
    explicit ClockedEvent(Device& device) : event_(device.create_event()) {}
    double ms() const { return *ms_; }  // once the stream that recorded it is synchronised

  private:
    friend class ClockedStream;
    const std::unique_ptr<Event> event_;
    std::shared_ptr<double> ms_;  // NaN until the record runs, null before it is enqueued
};

// A stream of the device. Throws on synchronize if a wait ended before what it waits for was recorded.
class ClockedStream {
  public:
    ClockedStream(Device& device, const std::string& name) : stream_(device.create_stream(name)) {}
    Stream& operator*() const { return *stream_; }

    void work(double ms);
    void record(ClockedEvent& event);
    void wait(const ClockedEvent& event);
    void synchronize() { stream_->synchronize(); }

  private:
    const std::unique_ptr<Stream> stream_;
};

// `world`, whose collectives leave every member at the time of the latest; `world` must outlive the result.
std::unique_ptr<World> make_clocked_world(World& world);

}  // namespace speedrun::testing
