#include "train/model/graph/busiest_step.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace speedrun {

namespace {

// "backward of blocks.3.mlp.up (linear 768 -> 3072)": a node is named after the first value that it writes.
std::string describe(const Step& step, const NodeGraph& graph) {
    const char* pass = step.kind == Step::Kind::backward ? "backward"
                       : step.repeats                    ? "forward again"
                                                         : "forward";
    const Node& node = *step.calls.back().node;
    const std::string written = node.writes().empty() ? node.kind() : graph[node.writes().front().value].name;
    return fmt::format("{} of {} ({})", pass, written, node.describe(graph));
}

}  // namespace

BusiestStep busiest_step(const std::vector<NamedBuffer>& requests) {
    int steps = 0;
    for (const auto& [kind, request] : requests) steps = std::max(steps, request.last + 1);
    std::vector<int64_t> change(static_cast<size_t>(steps) + 1);
    for (const auto& [kind, request] : requests) {
        change[static_cast<size_t>(request.first)] += request.bytes;
        change[static_cast<size_t>(request.last) + 1] -= request.bytes;
    }
    BusiestStep busiest;
    int64_t held = 0;
    for (int step = 0; step < steps; ++step) {
        held += change[static_cast<size_t>(step)];
        if (held <= busiest.bytes) continue;
        busiest.number = step;
        busiest.bytes = held;
    }
    std::map<std::string, BusiestStep::Kind> kinds;
    for (const auto& [name, request] : requests) {
        if (request.bytes == 0 || request.first > busiest.number || request.last < busiest.number) continue;
        BusiestStep::Kind& kind = kinds[name];
        kind.name = name;
        ++kind.count;
        kind.bytes += request.bytes;
    }
    for (auto& [name, kind] : kinds) busiest.kinds.push_back(std::move(kind));
    std::sort(busiest.kinds.begin(), busiest.kinds.end(), [](const auto& a, const auto& b) {
        return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
    });
    return busiest;
}

BusiestStep busiest_step_of(const Program& program, const NodeGraph& graph) {
    std::vector<NamedBuffer> requests;
    for (const Storage& storage : program.storages) {
        if (storage.held != kNoValue) continue;
        requests.push_back({storage.unit < 0 ? storage.name : graph.local_name(storage.name, storage.unit),
                            {.bytes = storage.bytes, .first = storage.first, .last = storage.last}});
    }
    BusiestStep busiest = busiest_step(requests);
    const auto note = [&](const Step& step) {
        const bool of_nodes = step.kind == Step::Kind::forward || step.kind == Step::Kind::backward;
        if (of_nodes && step.number == busiest.number) busiest.name = describe(step, graph);
    };
    for (const Step& step : program.forward) note(step);
    note(program.loss);
    for (const Step& step : program.backward) note(step);
    return busiest;
}

}  // namespace speedrun
