#include "train/sharding/lifetimes.h"

#include <algorithm>
#include <limits>

namespace speedrun {

namespace {

struct Block {
    std::vector<Lifetime> lifetimes;
    int64_t bytes = 0;
    int64_t offset = -1;
};

bool meet(const std::vector<Lifetime>& a, const std::vector<Lifetime>& b) {
    for (const Lifetime& x : a)
        for (const Lifetime& y : b)
            if (x.first <= y.last && y.first <= x.last) return true;
    return false;
}

std::vector<Block> blocks_of(const BucketLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                             const std::vector<int64_t>& element_bytes) {
    std::vector<Block> blocks;
    for (const Bucket& bucket : layout.all())
        blocks.push_back({lifetimes[bucket.id], layout.padded(bucket) * element_bytes[bucket.id], -1});
    return blocks;
}

// The lowest offset at which nothing is placed that lives at the same time.
int64_t first_fit(const Block& block, const std::vector<const Block*>& placed) {
    std::vector<const Block*> rivals;
    for (const Block* other : placed)
        if (meet(block.lifetimes, other->lifetimes)) rivals.push_back(other);
    std::sort(rivals.begin(), rivals.end(),
              [](const Block* a, const Block* b) { return a->offset < b->offset; });
    int64_t offset = 0;
    for (const Block* rival : rivals) {
        if (offset + block.bytes <= rival->offset) break;
        const int64_t end =
            (rival->offset + rival->bytes + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
        offset = std::max(offset, end);
    }
    return offset;
}

int64_t begin_of(const Block& block) {
    int begin = std::numeric_limits<int>::max();
    for (const Lifetime& lifetime : block.lifetimes) begin = std::min(begin, lifetime.first);
    return begin;
}

// First fit in ascending order of `key`; the bytes that it takes.
template <class Key>
int64_t place_in_order(std::vector<Block>& blocks, const Key& key) {
    std::vector<Block*> order;
    for (Block& block : blocks) order.push_back(&block);
    std::stable_sort(order.begin(), order.end(),
                     [&](const Block* a, const Block* b) { return key(*a) < key(*b); });
    std::vector<const Block*> placed;
    int64_t bytes = 0;
    for (Block* block : order) {
        block->offset = first_fit(*block, placed);
        placed.push_back(block);
        bytes = std::max(bytes, block->offset + block->bytes);
    }
    return bytes;
}

}  // namespace

std::vector<Lifetime> reads_of(const Bucket& bucket, const Stages& stages, Reshard reshard) {
    constexpr int kNever = std::numeric_limits<int>::max();
    Lifetime forward{kNever, -1}, backward{kNever, -1};
    const auto extend = [](Lifetime& lifetime, int stage) {
        lifetime.first = std::min(lifetime.first, stage);
        lifetime.last = std::max(lifetime.last, stage);
    };
    for (const Piece& piece : bucket.pieces) {
        const Parameter& p = *piece.parameter;
        extend(forward, stages.of(p.unit, Pass::forward));
        if (p.read_by_backward) extend(backward, stages.of(p.unit, Pass::backward));
        if (!p.also_head) continue;
        extend(forward, stages.count() / 2 - 1);
        extend(backward, stages.count() / 2);
    }
    if (reshard == Reshard::no) return {{forward.first, stages.count() - 1}};
    if (backward.last < 0) return {forward};
    if (reshard == Reshard::except_last && backward.first == stages.count() / 2)
        return {{forward.first, backward.last}};
    return {forward, backward};
}

Lifetime gradient_of(const Bucket& bucket, const Stages& stages) {
    Lifetime lifetime{stages.count(), 0};
    for (const Piece& piece : bucket.pieces) {
        const int stage = stages.of(piece.parameter->unit, Pass::backward);
        lifetime.first = std::min(lifetime.first, piece.parameter->also_head ? stages.count() / 2 : stage);
        lifetime.last = std::max(lifetime.last, stage);
    }
    return lifetime;
}

SharedMemory share_memory(const BucketLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                          const std::vector<int64_t>& element_bytes) {
    std::vector<Block> blocks = blocks_of(layout, lifetimes, element_bytes);
    const int64_t by_size = place_in_order(blocks, [](const Block& c) { return -c.bytes; });
    const int64_t by_begin = place_in_order(blocks, begin_of);
    SharedMemory memory;
    memory.bytes = by_begin;
    if (by_size < by_begin) memory.bytes = place_in_order(blocks, [](const Block& c) { return -c.bytes; });
    memory.offset.resize(static_cast<size_t>(layout.size()));
    memory.overlap.resize(static_cast<size_t>(layout.size()));
    for (size_t id = 0; id < blocks.size(); ++id) memory.offset[id] = blocks[id].offset;
    for (const Bucket& a : layout.all()) {
        for (const Bucket& b : layout.all()) {
            const int64_t end_a = memory.offset[a.id] + layout.padded(a) * element_bytes[a.id],
                          end_b = memory.offset[b.id] + layout.padded(b) * element_bytes[b.id];
            if (a.id == b.id || (memory.offset[a.id] < end_b && memory.offset[b.id] < end_a))
                memory.overlap[a.id].push_back(b.id);
        }
    }
    return memory;
}

}  // namespace speedrun
