#include "train/model/lifetimes.h"

#include <algorithm>
#include <limits>

namespace speedrun {

namespace {

// Regions that parameters straddle, and that therefore move together.
struct Cluster {
    std::vector<int> regions;
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

std::vector<Cluster> clusters_of(const RegionLayout& layout,
                                 const std::vector<std::vector<Lifetime>>& lifetimes,
                                 const std::vector<int64_t>& element_bytes) {
    std::vector<Cluster> clusters;
    for (const Region& region : layout.all()) {
        if (region.begins_cluster) clusters.emplace_back();
        Cluster& cluster = clusters.back();
        cluster.regions.push_back(region.id);
        const std::vector<Lifetime>& own = lifetimes[region.id];
        cluster.lifetimes.insert(cluster.lifetimes.end(), own.begin(), own.end());
        cluster.bytes += layout.padded(region) * element_bytes[region.id];
    }
    return clusters;
}

// The lowest offset at which nothing is placed that lives at the same time.
int64_t first_fit(const Cluster& cluster, const std::vector<const Cluster*>& placed) {
    std::vector<const Cluster*> rivals;
    for (const Cluster* other : placed)
        if (meet(cluster.lifetimes, other->lifetimes)) rivals.push_back(other);
    std::sort(rivals.begin(), rivals.end(),
              [](const Cluster* a, const Cluster* b) { return a->offset < b->offset; });
    int64_t offset = 0;
    for (const Cluster* rival : rivals) {
        if (offset + cluster.bytes <= rival->offset) break;
        const int64_t end =
            (rival->offset + rival->bytes + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
        offset = std::max(offset, end);
    }
    return offset;
}

int64_t begin_of(const Cluster& cluster) {
    int begin = std::numeric_limits<int>::max();
    for (const Lifetime& lifetime : cluster.lifetimes) begin = std::min(begin, lifetime.first);
    return begin;
}

// First fit in ascending order of `key`; the bytes that it takes.
template <class Key>
int64_t place_in_order(std::vector<Cluster>& clusters, const Key& key) {
    std::vector<Cluster*> order;
    for (Cluster& cluster : clusters) order.push_back(&cluster);
    std::stable_sort(order.begin(), order.end(),
                     [&](const Cluster* a, const Cluster* b) { return key(*a) < key(*b); });
    std::vector<const Cluster*> placed;
    int64_t bytes = 0;
    for (Cluster* cluster : order) {
        cluster->offset = first_fit(*cluster, placed);
        placed.push_back(cluster);
        bytes = std::max(bytes, cluster->offset + cluster->bytes);
    }
    return bytes;
}

}  // namespace

std::vector<Lifetime> reads_of(const Region& region, const Stages& stages, Reshard reshard) {
    constexpr int kNever = std::numeric_limits<int>::max();
    Lifetime forward{kNever, -1}, backward{kNever, -1};
    const auto extend = [](Lifetime& lifetime, int stage) {
        lifetime.first = std::min(lifetime.first, stage);
        lifetime.last = std::max(lifetime.last, stage);
    };
    for (const Piece& piece : region.pieces) {
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

Lifetime gradient_of(const Region& region, const Stages& stages) {
    Lifetime lifetime{stages.count(), 0};
    for (const Piece& piece : region.pieces) {
        const int stage = stages.of(piece.parameter->unit, Pass::backward);
        lifetime.first = std::min(lifetime.first, piece.parameter->also_head ? stages.count() / 2 : stage);
        lifetime.last = std::max(lifetime.last, stage);
    }
    return lifetime;
}

SharedMemory share_memory(const RegionLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                          const std::vector<int64_t>& element_bytes) {
    std::vector<Cluster> clusters = clusters_of(layout, lifetimes, element_bytes);
    const int64_t by_size = place_in_order(clusters, [](const Cluster& c) { return -c.bytes; });
    const int64_t by_begin = place_in_order(clusters, begin_of);
    SharedMemory memory;
    memory.bytes = by_begin;
    if (by_size < by_begin)
        memory.bytes = place_in_order(clusters, [](const Cluster& c) { return -c.bytes; });
    memory.offset.resize(static_cast<size_t>(layout.size()));
    memory.overlap.resize(static_cast<size_t>(layout.size()));
    for (const Cluster& cluster : clusters) {
        const Region& first = layout[cluster.regions.front()];
        for (const int id : cluster.regions)
            memory.offset[id] = cluster.offset + (layout[id].offset - first.offset) * element_bytes[id];
    }
    for (const Region& a : layout.all()) {
        for (const Region& b : layout.all()) {
            const int64_t end_a = memory.offset[a.id] + layout.padded(a) * element_bytes[a.id],
                          end_b = memory.offset[b.id] + layout.padded(b) * element_bytes[b.id];
            if (a.id == b.id || (memory.offset[a.id] < end_b && memory.offset[b.id] < end_a))
                memory.overlap[a.id].push_back(b.id);
        }
    }
    return memory;
}

}  // namespace speedrun
