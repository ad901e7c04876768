#include "train/sharding/gradient_store.h"

namespace speedrun {

namespace {

// In a ring a gradient lives one stage longer, while it is reduced and backward continues. Gradients of frozen buckets share
// memory in any case, as only backward writes them.
SharedMemory place_gradients(const ParameterTable& table, const BucketLayout& layout, bool ring) {
    const UnitPasses unit_passes(table.num_units());
    std::vector<std::vector<Lifetime>> lifetimes;
    for (const Bucket& bucket : layout.all()) {
        Lifetime lifetime = gradient_of(bucket, unit_passes);
        if (ring) {
            ++lifetime.last;
        } else if (!bucket.frozen) {
            lifetime = {0, unit_passes.count()};
        }
        lifetimes.push_back({lifetime});
    }
    return share_memory(layout, lifetimes, std::vector<int64_t>(layout.all().size(), size_of(DType::f32)));
}

}  // namespace

GradientStore::GradientStore(const ParameterTable& table, const BucketLayout& layout, Runtime& runtime,
                             const GradientMemory& memory)
    : layout_(layout),
      memory_(memory),
      place_(place_gradients(table, layout, memory.ring)),
      buffer_(runtime.device(), memory.ring ? "f32 gradient ring" : "f32 gradients",
              MemoryCategory::gradients, place_.bytes) {
    if (!memory.accumulators) return;
    int64_t bytes = 0;
    for (const Bucket& bucket : layout.all()) {
        accumulator_offset_.push_back(bytes);
        if (!bucket.frozen) bytes += (bucket.shard_size * size_of(DType::f32) + 63) / 64 * 64;
    }
    accumulators_ = Buffer(runtime.device(), "f32 gradient shards", MemoryCategory::gradients, bytes);
}

int64_t GradientStore::offset_of(const Parameter& p) const {
    return place_.offset[layout_.bucket_of(p).id] + layout_.in_bucket(p) * size_of(DType::f32);
}

Tensor GradientStore::of(const Parameter& p) const {
    if (p.shape.size() != 2) return flat(p);
    return buffer_.tensor(DType::f32, {p.shape[0], p.shape[1]}, offset_of(p));
}

Tensor GradientStore::flat(const Parameter& p) const {
    return buffer_.tensor(DType::f32, {p.numel()}, offset_of(p));
}

Tensor GradientStore::whole(const Bucket& bucket) const {
    return buffer_.tensor(DType::f32, {layout_.padded(bucket)}, place_.offset[bucket.id]);
}

Tensor GradientStore::padded_shard(const Bucket& bucket) const {
    return buffer_.tensor(DType::f32, {bucket.shard_size},
                          place_.offset[bucket.id] + bucket.index * bucket.shard_size * size_of(DType::f32));
}

Tensor GradientStore::accumulated_shard(const Bucket& bucket) const {
    if (!memory_.accumulators) return padded_shard(bucket);
    return accumulators_.tensor(DType::f32, {bucket.shard_size}, accumulator_offset_[bucket.id]);
}

Tensor GradientStore::shard(const Bucket& bucket) const {
    return Tensor(accumulated_shard(bucket).data, DType::f32, {layout_.valid(bucket)});
}

}  // namespace speedrun
