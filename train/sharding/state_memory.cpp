#include "train/sharding/state_memory.h"

#include "train/sharding/lifetimes.h"

namespace speedrun {

StateMemory::StateMemory(const std::vector<StateKind>& kinds, const std::vector<const Bucket*>& members,
                         const BucketLayout& layout, Device& device) {
    // Aligned, so that updates of every bucket can be vectorised.
    const auto bytes_of = [&](const Bucket* bucket, DType dtype) {
        const int64_t valid = layout.valid(*bucket) * size_of(dtype);
        return (valid + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
    };
    for (const StateKind& kind : kinds) {
        if (!kind.per_element()) continue;
        int64_t bytes = 0;
        for (const Bucket* bucket : members) bytes += bytes_of(bucket, kind.dtype);
        kinds_.push_back(kind);
        memory_.emplace_back(device, kind.name, MemoryCategory::optimizer_state, bytes);
        int64_t offset = 0;
        for (const Bucket* bucket : members) {
            tensors_[bucket->id].push_back(
                memory_.back().tensor(kind.dtype, {layout.valid(*bucket)}, offset));
            offset += bytes_of(bucket, kind.dtype);
        }
    }
}

std::vector<StateShard> StateMemory::shards(const Bucket& bucket) const {
    std::vector<StateShard> shards;
    for (const StateKind& kind : kinds_) shards.push_back({kind, of(bucket)[shards.size()]});
    return shards;
}

void StateMemory::reset(Ops& ops, Stream& stream) {
    for (const Buffer& buffer : memory_) fill_with_zeros(buffer, ops, stream);
}

void fill_with_zeros(const Buffer& buffer, Ops& ops, Stream& stream) {
    const int64_t count = buffer.bytes() / size_of(DType::f32);
    if (count > 0) ops.fill({.x = buffer.tensor(DType::f32, {count}), .value = 0.0f}, stream);
}

}  // namespace speedrun
