#include "kernels/runtime/graph_capture.h"

#include <utility>

namespace speedrun {

void CapturedGraphs::launch(Stream& compute) const {
    for (const Part& part : parts_) {
        part.graph->launch(compute);
        for (const auto& work : part.others) work();
    }
}

std::unique_ptr<CapturedGraphs> GraphCapture::capture(const std::function<void()>& body) {
    if (captured_) throw_internal("stream {} is being captured already", compute_.name());
    if (!device_.begin_graph(compute_)) return nullptr;
    captured_ = std::make_unique<CapturedGraphs>();
    try {
        body();
        end_part();
    } catch (...) {
        // Ends the capture of the stream in any case, and reports body's error.
        captured_.reset();
        others_.clear();
        try {
            device_.end_graph(compute_);
        } catch (const Error&) {
        }
        throw;
    }
    return std::move(captured_);
}

void GraphCapture::end_part() {
    captured_->parts_.push_back({device_.end_graph(compute_), std::exchange(others_, {})});
}

void GraphCapture::on_others(std::function<void()> work) {
    if (!captured_) return work();
    others_.push_back(std::move(work));
}

void GraphCapture::cut() {
    end_part();
    if (!device_.begin_graph(compute_))
        throw_internal("stream {}: a second graph is not captured", compute_.name());
}

}  // namespace speedrun
