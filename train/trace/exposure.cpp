#include "train/trace/exposure.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace speedrun {

std::unique_ptr<Event> ExposureMeter::take_event() {
    if (free_.empty()) return device_.create_event(EventKind::timed);
    std::unique_ptr<Event> event = std::move(free_.back());
    free_.pop_back();
    return event;
}

ExposureMeter::Span ExposureMeter::begin(Kind kind, Stream& stream) {
    Span span{kind, take_event(), take_event()};
    stream.record(*span.begin);
    return span;
}

void ExposureMeter::end(Span span, Stream& stream) {
    stream.record(*span.end);
    pending_.push_back(std::move(span));
}

void ExposureMeter::clear() {
    for (Span& span : pending_) {
        free_.push_back(std::move(span.begin));
        free_.push_back(std::move(span.end));
    }
    pending_.clear();
    known_.clear();
}

ExposureMeter::Parts ExposureMeter::measure(const Event& now, double now_ms, const Window& window) {
    const Interval step = window.step, idle = window.idle;
    const auto time_of = [&](const Event& event) { return now_ms + event.elapsed_ms_since(now); };
    std::vector<Known> open;
    for (Span& span : pending_) {
        if (span.end->complete()) {
            known_.push_back({span.kind, {time_of(*span.begin), time_of(*span.end)}});
            free_.push_back(std::move(span.begin));
            free_.push_back(std::move(span.end));
        } else if (span.begin->complete()) {
            open.push_back({span.kind, {time_of(*span.begin), std::numeric_limits<double>::infinity()}});
        }
    }
    std::erase_if(pending_, [](const Span& span) { return !span.end; });

    StreamTimes times;
    Parts parts;
    const auto add = [&](const Known& one) {
        const Interval inside{std::max(one.time.begin, step.begin), std::min(one.time.end, step.end)};
        if (inside.begin >= inside.end) return;
        const bool communicates = one.kind == Kind::collective || one.kind == Kind::exchange;
        if (communicates) parts.collectives += inside.end - inside.begin;
        if (communicates) times.collectives.push_back(inside);
        if (one.kind == Kind::exchange) times.exchanges.push_back(inside);
        if (one.kind == Kind::optimizer) times.optimizer.push_back(inside);
        if (one.kind == Kind::wait) times.idle.push_back(inside);
    };
    add({Kind::wait, idle});
    for (const Known& one : known_) add(one);
    for (const Known& one : open) add(one);
    std::erase_if(known_, [&](const Known& one) { return one.time.end <= step.end; });
    parts.exposed = length(exposed(times));
    parts.other_waits = length(merged_intervals(times.idle)) - parts.exposed;
    return parts;
}

}  // namespace speedrun
