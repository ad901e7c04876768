#include "train/sharding/lifetimes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/device/error.h"

namespace speedrun {

std::vector<Lifetime> reads_of(const Bucket& bucket, const UnitPasses& unit_passes, Reshard reshard) {
    constexpr int kNever = std::numeric_limits<int>::max();
    Lifetime forward{kNever, -1}, backward{kNever, -1};
    const auto extend = [](Lifetime& lifetime, int unit_pass) {
        lifetime.first = std::min(lifetime.first, unit_pass);
        lifetime.last = std::max(lifetime.last, unit_pass);
    };
    for (const Parameter* p : bucket.parameters) {
        for (const UnitUse& use : p->uses) {
            extend(forward, unit_passes.of(use.unit, Pass::forward));
            if (use.in_backward) extend(backward, unit_passes.of(use.unit, Pass::backward));
        }
    }
    if (reshard == Reshard::no) return {{forward.first, unit_passes.count() - 1}};
    if (backward.last < 0) return {forward};
    if (reshard == Reshard::except_last && backward.first == unit_passes.count() / 2)
        return {{forward.first, backward.last}};
    return {forward, backward};
}

Lifetime gradient_of(const Bucket& bucket, const UnitPasses& unit_passes) {
    Lifetime lifetime{unit_passes.count(), 0};
    for (const Parameter* p : bucket.parameters) {
        const std::vector<UnitUse>& uses = p->uses;
        lifetime.first = std::min(lifetime.first, unit_passes.of(uses.back().unit, Pass::backward));
        lifetime.last = std::max(lifetime.last, unit_passes.of(uses.front().unit, Pass::backward));
    }
    return lifetime;
}

SharedMemory share_memory(const BucketLayout& layout, const std::vector<std::vector<Lifetime>>& lifetimes,
                          const std::vector<int64_t>& element_bytes) {
    std::vector<BufferRequest> requests;
    for (const Bucket& bucket : layout.all()) {
        const std::vector<Lifetime>& times = lifetimes[bucket.id];
        if (times.empty() || times.size() > 2)
            throw_internal("{} has {} lifetimes, expected 1 or 2", bucket.name(), times.size());
        requests.push_back({.bytes = layout.padded(bucket) * element_bytes[bucket.id],
                            .first = times[0].first,
                            .last = times[0].last});
        if (times.size() == 2) requests.back().again = times[1];
    }
    BufferAssignment assignment = first_fit(requests, kAlignedBytes);
    SharedMemory memory;
    memory.bytes = assignment.bytes;
    memory.offset = std::move(assignment.offset);
    memory.overlap.resize(static_cast<size_t>(layout.size()));
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
