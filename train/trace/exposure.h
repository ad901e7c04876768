// ExposureMeter: splits the time of a step into computing, exposed communication and other waits. It records two events around
// each wait of compute, each collective and each bucket's step. The host never waits, and operations are not timed.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "train/trace/intervals.h"

namespace speedrun {

class ExposureMeter {
  public:
    // exchange: a collective on the optimizer's stream, which is not work of the optimizer.
    enum class Kind : uint8_t { wait, collective, exchange, optimizer };

    // Milliseconds of one step; compute works for the rest of it.
    struct Parts {
        double exposed = 0;      // length of exposed(), see train/trace/intervals.h
        double other_waits = 0;  // compute waits for the optimizer or for an event's latency
        double collectives = 0;  // sum of all collectives, which may overlap; at least `exposed`
    };

    // The device must outlive the meter.
    explicit ExposureMeter(Device& device) : device_(device) {}

    // Work that is enqueued while the meter is off is not timed. It is off during captures and validations.
    void turn(bool on) { on_ = on; }
    // Calls enqueue(), which enqueues work or waits on this stream, and records an event before and after.
    template <class Enqueue>
    [[gnu::always_inline]] void time(Kind kind, Stream& stream, const Enqueue& enqueue) {
        Span span = on_ ? begin(kind, stream) : Span{};
        enqueue();
        if (span.begin) end(std::move(span), stream);
    }

    // Drops all spans. All streams must be synchronized.
    void clear();
    struct Window {
        Interval step;
        Interval idle;  // window in which compute is known to be idle
    };
    // Returns the parts of a step whose work has completed. now: a completed event at now_ms. The part of a span after the
    // step's end counts for the next step.
    Parts measure(const Event& now, double now_ms, const Window& window);

  private:
    struct Span {
        Kind kind = Kind::wait;
        std::unique_ptr<Event> begin, end;
    };
    struct Known {
        Kind kind;
        Interval time;
    };
    Span begin(Kind kind, Stream& stream);
    void end(Span span, Stream& stream);
    std::unique_ptr<Event> take_event();

    Device& device_;
    bool on_ = false;
    std::vector<Span> pending_;  // enqueued; their events may be incomplete
    std::vector<Known> known_;
    std::vector<std::unique_ptr<Event>> free_;
};

}  // namespace speedrun
