#include "kernels/runtime/graph_recorder.h"

#include <utility>

namespace speedrun {

void GraphRecorder::Recording::launch(Stream& compute) const {
    for (const Part& part : parts_) {
        part.graph->launch(compute);
        for (const auto& work : part.others) work();
    }
}

std::unique_ptr<GraphRecorder::Recording> GraphRecorder::record(const std::function<void()>& body) {
    if (recording_) throw_internal("stream {} is being recorded already", compute_.name());
    if (!device_.begin_graph(compute_)) return nullptr;
    recording_ = std::make_unique<Recording>();
    try {
        body();
        end_part();
    } catch (...) {
        // Whatever has gone wrong, the stream records no more; what body threw is the error to tell.
        recording_.reset();
        others_.clear();
        try {
            device_.end_graph(compute_);
        } catch (const Error&) {
        }
        throw;
    }
    return std::move(recording_);
}

void GraphRecorder::end_part() {
    recording_->parts_.push_back({device_.end_graph(compute_), std::exchange(others_, {})});
}

void GraphRecorder::on_others(std::function<void()> work) {
    if (!recording_) return work();
    others_.push_back(std::move(work));
}

void GraphRecorder::cut() {
    end_part();
    if (!device_.begin_graph(compute_))
        throw_internal("stream {}: a second graph is not recorded", compute_.name());
}

}  // namespace speedrun
