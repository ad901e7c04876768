// SectionGraphs: sections of the work of one stream, each enqueued call by call or as a captured graph.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class SectionGraphs {
  public:
    // Sections with equal keys enqueue the same work.
    using Key = std::vector<int>;
    using Body = std::function<void()>;

    // device and stream must outlive it.
    SectionGraphs(Device& device, Stream& stream) : device_(device), stream_(stream) {}

    // Enqueues the work of body, or launches its graph.
    void run(const Key& key, const Body& body) {
        if (inside_) return body();
        if (captures_) return capture_section(key, body);
        const auto graph = use_ ? graphs_.find(key) : graphs_.end();
        if (graph == graphs_.end()) return body();
        graph->second->launch(stream_);
    }
    // Captures the sections that `sections` runs, instead of executing them.
    void capture(const Body& sections) {
        captures_ = true;
        sections();
        captures_ = false;
    }
    // Selects whether later sections run as graphs. Both ways enqueue the same work.
    void use(bool graphs) { use_ = graphs; }
    size_t size() const { return graphs_.size(); }

  private:
    void capture_section(const Key& key, const Body& body) {
        if (graphs_.count(key)) return;
        inside_ = true;  // a section of this section belongs to its graph
        std::unique_ptr<Graph> graph = device_.capture_graph(stream_, body);
        inside_ = false;
        if (graph) graphs_[key] = std::move(graph);
    }

    Device& device_;
    Stream& stream_;
    std::map<Key, std::unique_ptr<Graph>> graphs_;
    bool captures_ = false, inside_ = false, use_ = true;
};

}  // namespace speedrun
