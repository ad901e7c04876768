// GraphCapture: what a microbatch enqueues, captured as graphs of the compute stream with the work of other
// streams between them.
//
// A graph that waits for an event waits for the latest record that was enqueued before its launch. Work of
// other streams that follows work of a graph is therefore enqueued behind that graph's launch, and where
// compute has to wait for such work, one graph ends and the next begins.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class CapturedGraphs {
  public:
    // Enqueues everything anew.
    void launch(Stream& compute) const;
    size_t num_graphs() const { return parts_.size(); }

  private:
    friend class GraphCapture;
    struct Part {
        std::unique_ptr<Graph> graph;
        std::vector<std::function<void()>> others;  // after its launch
    };
    std::vector<Part> parts_;
};

class GraphCapture {
  public:
    // Both must outlive it.
    GraphCapture(Device& device, Stream& compute) : device_(device), compute_(compute) {}

    // What body enqueues on compute, and gives to on_others(). Null, without having run body, where the
    // device captures nothing.
    std::unique_ptr<CapturedGraphs> capture(const std::function<void()>& body);

    // Work for streams other than compute that follows what compute has been given so far: done at once, or
    // at each launch of what is being captured. It must hold for every launch.
    void on_others(std::function<void()> work);
    // Calls wait(), which makes compute wait for events of other streams. During a capture, wait() is captured, or called before
    // the next graph at each launch if other streams have work since the last graph began. It must be valid for every launch.
    // Inlined, so that the wait belongs to its caller: missing_waits_test removes waits caller by caller.
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
    std::unique_ptr<CapturedGraphs> captured_;   // so far; null: nothing is being captured
    std::vector<std::function<void()>> others_;  // since its last part began
};

}  // namespace speedrun
