#include "train/model/graph/memory_peak.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace speedrun {

namespace {

// "backward of blocks.3.mlp.up (linear 768 -> 3072)": a node is named after the first value that it writes.
std::string describe(const Instruction& instruction, const NodeGraph& graph) {
    const char* pass = instruction.kind == Instruction::Kind::backward ? "backward"
                       : instruction.kind == Instruction::Kind::shared ? "shared gradients"
                       : instruction.repeats                           ? "forward again"
                                                                       : "forward";
    const Node& node = *instruction.calls.back().node;
    const std::string written = node.writes().empty() ? node.kind() : graph[node.writes().front().value].name;
    return fmt::format("{} of {} ({})", pass, written, node.describe(graph));
}

}  // namespace

MemoryPeak memory_peak(const std::vector<NamedBuffer>& requests) {
    int instructions = 0;
    for (const auto& [kind, request] : requests) instructions = std::max(instructions, request.last + 1);
    std::vector<int64_t> change(static_cast<size_t>(instructions) + 1);
    for (const auto& [kind, request] : requests) {
        change[static_cast<size_t>(request.first)] += request.bytes;
        change[static_cast<size_t>(request.last) + 1] -= request.bytes;
    }
    MemoryPeak peak;
    int64_t held = 0;
    for (int instruction = 0; instruction < instructions; ++instruction) {
        held += change[static_cast<size_t>(instruction)];
        if (held <= peak.bytes) continue;
        peak.number = instruction;
        peak.bytes = held;
    }
    std::map<std::string, MemoryPeak::Kind> kinds;
    for (const auto& [name, request] : requests) {
        if (request.bytes == 0 || request.first > peak.number || request.last < peak.number) continue;
        MemoryPeak::Kind& kind = kinds[name];
        kind.name = name;
        ++kind.count;
        kind.bytes += request.bytes;
    }
    for (auto& [name, kind] : kinds) peak.kinds.push_back(std::move(kind));
    std::sort(peak.kinds.begin(), peak.kinds.end(), [](const auto& a, const auto& b) {
        return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
    });
    return peak;
}

MemoryPeak memory_peak_of(const Program& program, const NodeGraph& graph) {
    std::vector<NamedBuffer> requests;
    for (const Storage& storage : program.storages) {
        if (storage.held != kNoValue) continue;
        requests.push_back({storage.unit < 0 ? storage.name : graph.local_name(storage.name, storage.unit),
                            {.bytes = storage.bytes, .first = storage.first, .last = storage.last}});
    }
    MemoryPeak peak = memory_peak(requests);
    const auto note = [&](const Instruction& instruction) {
        const bool of_nodes = instruction.kind != Instruction::Kind::enter &&
                              instruction.kind != Instruction::Kind::sort &&
                              instruction.kind != Instruction::Kind::add;
        if (of_nodes && instruction.number == peak.number) peak.name = describe(instruction, graph);
    };
    for (const Instruction& instruction : program.forward) note(instruction);
    note(program.loss);
    for (const Instruction& instruction : program.backward) note(instruction);
    return peak;
}

}  // namespace speedrun
