#include "train/sharding/gradient_store.h"

#include <algorithm>

namespace speedrun {

namespace {

// With a ring, a gradient stays for one more stage, in which it is reduced while backward goes on.
SharedMemory place_gradients(const ParameterTable& table, const BucketLayout& layout, bool ring) {
    const Stages stages(table.num_units());
    std::vector<std::vector<Lifetime>> lifetimes;
    for (const Bucket& bucket : layout.all()) {
        Lifetime lifetime = gradient_of(bucket, stages);
        if (ring) {
            ++lifetime.last;
        } else {
            lifetime = {0, stages.count()};
        }
        lifetimes.push_back({lifetime});
    }
    return share_memory(layout, lifetimes, std::vector<int64_t>(layout.all().size(), size_of(DType::f32)));
}

}  // namespace

GradientStore::GradientStore(const ParameterTable& table, const BucketLayout& layout, Runtime& runtime,
                             const GradientMemory& memory)
    : table_(table),
      layout_(layout),
      memory_(memory),
      place_(place_gradients(table, layout, memory.ring)),
      buffer_(runtime.device(), memory.ring ? "f32 gradient ring" : "f32 gradients",
              MemoryCategory::gradients, place_.bytes),
      begun_(table.size()),
      ready_(table.size()),
      bucket_open_(layout.all().size()) {
    if (!memory.accumulators) return;
    int64_t bytes = 0;
    for (const Bucket& bucket : layout.all()) {
        accumulator_offset_.push_back(bytes);
        bytes += (bucket.shard_size * size_of(DType::f32) + 63) / 64 * 64;
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

void GradientStore::begin_microbatch(const std::vector<bool>& fresh) {
    std::fill(ready_.begin(), ready_.end(), false);
    std::fill(bucket_open_.begin(), bucket_open_.end(), false);
    for (const Parameter& p : table_.all()) {
        const int group = layout_.bucket_of(p).group;
        if (memory_.reused() || fresh.empty() || fresh[group]) begun_[p.id] = false;
    }
}

bool GradientStore::accumulates(const Parameter& p) {
    if (memory_.reused()) {
        const Bucket& bucket = layout_.bucket_of(p);
        if (!bucket_open_[bucket.id] && observer_) observer_->begun(bucket);
        bucket_open_[bucket.id] = true;
    }
    const bool begun = begun_[p.id];
    begun_[p.id] = true;
    return begun;
}

void GradientStore::ready(const Parameter& p, bool still_read) {
    if (!begun_[p.id]) throw_internal("gradient of {} announced before any contribution", p.name);
    if (ready_[p.id]) throw_internal("gradient of {} announced twice in one microbatch", p.name);
    ready_[p.id] = true;
    if (observer_) observer_->ready(p);
    if (!still_read) released(p);
}

void GradientStore::released(const Parameter& p) {
    if (!ready_[p.id]) throw_internal("{} released before its gradient was announced", p.name);
    if (observer_) observer_->released(p);
}

void GradientStore::contributed() {
    std::fill(begun_.begin(), begun_.end(), true);
}

void GradientStore::expect_all_ready() {
    std::string missing;
    for (const Parameter& p : table_.all()) {
        if (!ready_[p.id] && p.id != resting_) missing += (missing.empty() ? "" : ", ") + p.name;
    }
    if (!missing.empty()) throw_internal("no gradient came for: {}", missing);
    std::fill(ready_.begin(), ready_.end(), false);
}

}  // namespace speedrun
