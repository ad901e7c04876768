// GraphCapture: the work of a microbatch as graphs of the compute stream, with work of other streams between
// them.
//
// A graph that waits for an event waits for the latest record enqueued before its launch. Work of other
// streams that follows work of a graph is therefore enqueued after that graph's launch. If compute has to
// wait for such work, one graph ends and the next begins.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class CapturedGraphs {
  public:
    // Enqueues the captured work again.
    void launch(Stream& compute) const;
    size_t num_graphs() const { return parts_.size(); }

  private:
    friend class GraphCapture;
    struct Part {
        std::unique_ptr<Graph> graph;
        std::vector<std::function<void()>> others;  // enqueued after the graph's launch
    };
    std::vector<Part> parts_;
};

class GraphCapture {
  public:
    // device and compute must outlive it.
    GraphCapture(Device& device, Stream& compute) : device_(device), compute_(compute) {}

    // Captures the work that body enqueues on compute and passes to on_others(). Null, without running body,
    // if the device cannot capture.
    std::unique_ptr<CapturedGraphs> capture(const std::function<void()>& body);

    // Passes work for other streams that follows the work enqueued on compute so far. Runs immediately or,
    // during a capture, at each launch. It must be valid for every launch.
    void on_others(std::function<void()> work);
    // Calls wait(), which makes compute wait for events of other streams. A capture captures wait(), or calls
    // it before the next graph at each launch if other streams have work since the last graph began. It must
    // be valid for every launch. Inlined, so that the wait belongs to its caller: missing_waits_test removes
    // waits caller by caller.
    template <class Wait>
    [[gnu::always_inline]] void await(const Wait& wait) {
        if (others_.empty()) return wait();
        others_.emplace_back(wait);
        cut();
    }

  private:
    void cut();  // one graph ends, the next begins
    void end_part();

    Device& device_;
    Stream& compute_;
    std::unique_ptr<CapturedGraphs> captured_;   // null: no capture
    std::vector<std::function<void()>> others_;  // work since the last part began
};

}  // namespace speedrun
