// Natural loops of a listing's control flow graph.
// build: in cuda_code_tests
#include <algorithm>
#include <set>

#include "tests/cuda/sass.h"

namespace speedrun::testing {
namespace {

struct Block {
    int64_t begin = 0, end = 0;  // instructions [begin, end)
    std::vector<int64_t> successors, predecessors;
    int64_t order = -1;      // index in reverse postorder; -1: unreachable from the kernel's begin
    int64_t dominator = -1;  // immediate dominator
};

bool is(const SassInstruction& instruction, std::string_view base) {
    return instruction.opcode.substr(0, instruction.opcode.find('.')) == base;
}

bool ends_block(const SassInstruction& instruction) {
    // A call returns to the next instruction. BSSY's label is the target of BSYNC, after that BSYNC.
    return is(instruction, "BRA") || is(instruction, "BRX") || is(instruction, "JMP") ||
           is(instruction, "EXIT") || is(instruction, "RET") || is(instruction, "WARPSYNC");
}

std::vector<Block> blocks_of(const SassListing& kernel) {
    const auto& code = kernel.instructions;
    const auto size = static_cast<int64_t>(code.size());
    std::set<int64_t> begins{0};
    for (const auto& [label, index] : kernel.labels) begins.insert(index);
    for (int64_t i = 0; i < size; ++i)
        if (ends_block(code[i])) begins.insert(i + 1);
    begins.erase(begins.lower_bound(size), begins.end());
    std::vector<Block> blocks;
    std::map<int64_t, int64_t> block_at;
    for (const int64_t begin : begins) {
        block_at[begin] = static_cast<int64_t>(blocks.size());
        if (!blocks.empty()) blocks.back().end = begin;
        blocks.push_back({begin, size, {}, {}});
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
        const SassInstruction& last = code[blocks[i].end - 1];
        const auto target = kernel.labels.find(last.target);
        if (ends_block(last) && target != kernel.labels.end() && block_at.contains(target->second))
            blocks[i].successors.push_back(block_at[target->second]);
        const bool goes_on = !ends_block(last) || !last.always || is(last, "WARPSYNC");
        if (goes_on && i + 1 < blocks.size()) blocks[i].successors.push_back(static_cast<int64_t>(i) + 1);
        for (const int64_t next : blocks[i].successors)
            blocks[next].predecessors.push_back(static_cast<int64_t>(i));
    }
    return blocks;
}

// Numbers the reachable blocks; returns them in that order.
std::vector<int64_t> reverse_postorder(std::vector<Block>& blocks) {
    std::vector<int64_t> order, next(blocks.size(), 0), path{0};
    std::vector<bool> seen(blocks.size(), false);
    seen[0] = true;
    while (!path.empty()) {
        const int64_t at = path.back();
        if (next[at] == static_cast<int64_t>(blocks[at].successors.size())) {
            order.push_back(at);
            path.pop_back();
        } else if (const int64_t to = blocks[at].successors[next[at]++]; !seen[to]) {
            seen[to] = true;
            path.push_back(to);
        }
    }
    std::reverse(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); ++i) blocks[order[i]].order = static_cast<int64_t>(i);
    return order;
}

// Source: Cooper, Harvey, Kennedy, A Simple, Fast Dominance Algorithm (2001).
void find_dominators(std::vector<Block>& blocks) {
    const std::vector<int64_t> order = reverse_postorder(blocks);
    blocks[0].dominator = 0;
    const auto common = [&](int64_t a, int64_t b) {
        while (a != b) {
            int64_t& later = blocks[a].order > blocks[b].order ? a : b;
            later = blocks[later].dominator;
        }
        return a;
    };
    for (bool changed = true; changed;) {
        changed = false;
        for (const int64_t block : order) {
            if (block == 0) continue;
            int64_t nearest = -1;
            for (const int64_t before : blocks[block].predecessors)
                if (blocks[before].dominator >= 0) nearest = nearest < 0 ? before : common(before, nearest);
            changed = changed || nearest != blocks[block].dominator;
            blocks[block].dominator = nearest;
        }
    }
}

bool dominates(const std::vector<Block>& blocks, int64_t first, int64_t block) {
    while (blocks[block].order > blocks[first].order) block = blocks[block].dominator;
    return block == first;
}

// Blocks of the loop of each header.
std::map<int64_t, std::set<int64_t>> bodies_of(const std::vector<Block>& blocks) {
    std::map<int64_t, std::set<int64_t>> bodies;
    for (size_t i = 0; i < blocks.size(); ++i) {
        const auto from = static_cast<int64_t>(i);
        for (const int64_t header : blocks[i].successors) {
            if (blocks[i].order < 0 || !dominates(blocks, header, from)) continue;
            std::set<int64_t>& body = bodies[header];
            body.insert(header);
            for (std::vector<int64_t> open{from}; !open.empty();) {
                const int64_t block = open.back();
                open.pop_back();
                if (blocks[block].order < 0 || !body.insert(block).second) continue;
                open.insert(open.end(), blocks[block].predecessors.begin(), blocks[block].predecessors.end());
            }
        }
    }
    return bodies;
}

}  // namespace

std::vector<SassLoop> loops_of(const SassListing& kernel) {
    if (kernel.instructions.empty()) return {};
    std::vector<Block> blocks = blocks_of(kernel);
    find_dominators(blocks);
    const auto bodies = bodies_of(blocks);
    std::vector<SassLoop> loops;
    for (const auto& [header, body] : bodies) {
        SassLoop loop{blocks[header].begin, 0, {}, {}};
        std::set<int64_t> inner;
        for (const auto& [other, other_body] : bodies) {
            loop.depth += other_body.contains(header);
            if (other != header && body.contains(other)) inner.insert(other_body.begin(), other_body.end());
        }
        for (const int64_t block : body) {
            for (int64_t i = blocks[block].begin; i < blocks[block].end; ++i) {
                loop.counts.add(kernel.instructions[i].opcode);
                if (!inner.contains(block)) loop.own.add(kernel.instructions[i].opcode);
            }
        }
        loops.push_back(loop);
    }
    return loops;
}

}  // namespace speedrun::testing
