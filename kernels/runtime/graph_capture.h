// GraphCapture: work of the compute stream, captured as graphs, and work of other streams between the graphs' launches.
//
// A graph that waits for an event waits for the latest record enqueued before its launch. Work of other streams that depends on a
// graph is therefore enqueued after that graph's launch. Where compute waits for such work, one graph ends and the next begins.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

// Work: a value that describes work of other streams; the owner of the capture runs it.
template <class Work>
struct CapturedGraphs {
    struct Part {
        std::unique_ptr<Graph> graph;
        std::vector<Work> others;  // to be run after each launch of the graph
    };
    std::vector<Part> parts;
};

template <class Work>
class GraphCapture {
  public:
    // device and compute must outlive it.
    GraphCapture(Device& device, Stream& compute) : device_(device), compute_(compute) {}

    // Captures all that body enqueues on compute, and records work. Returns null, without a call of body, if the device captures
    // nothing.
    std::unique_ptr<CapturedGraphs<Work>> capture(const std::function<void()>& body) {
        if (captured_) throw_internal("stream {} is being captured already", compute_.name());
        if (!device_.begin_graph(compute_)) return nullptr;
        captured_ = std::make_unique<CapturedGraphs<Work>>();
        try {
            body();
            end_part();
        } catch (...) {
            captured_.reset();
            others_.clear();
            try {
                device_.end_graph(compute_);
            } catch (const Error&) {  // the error of body is the one to report
            }
            throw;
        }
        return std::move(captured_);
    }

    bool active() const { return captured_ != nullptr; }
    // For work of other streams that depends on work of compute. During a capture records it and returns true. Otherwise
    // returns false: the caller runs it.
    bool record(const Work& work) {
        if (captured_) others_.push_back(work);
        return captured_ != nullptr;
    }
    // For a wait of compute for other streams. If the current graph is followed by work of other streams, records the wait,
    // begins the next graph and returns true. Otherwise returns false: the caller enqueues the wait, which may be captured.
    bool record_wait(const Work& wait) {
        if (others_.empty()) return false;
        others_.push_back(wait);
        end_part();
        if (!device_.begin_graph(compute_))
            throw_internal("stream {}: a second graph is not captured", compute_.name());
        return true;
    }

  private:
    void end_part() { captured_->parts.push_back({device_.end_graph(compute_), std::exchange(others_, {})}); }

    Device& device_;
    Stream& compute_;
    std::unique_ptr<CapturedGraphs<Work>> captured_;  // null: no capture
    std::vector<Work> others_;                        // after the current graph
};

}  // namespace speedrun
