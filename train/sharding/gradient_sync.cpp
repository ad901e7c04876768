#include "train/sharding/gradient_sync.h"

namespace speedrun {

GradientSync::GradientSync(Launch launch, bool awaits_release, const BucketLayout& layout,
                           GradientStore& gradients, Reducer& reducer, Runtime& runtime,
                           GraphCapture& capture)
    : when_(launch),
      awaits_release_(awaits_release),
      layout_(layout),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      capture_(capture) {
    for (const Bucket& bucket : layout.all()) {
        pending_.push_back(static_cast<int>(bucket.pieces.size()));
        unreleased_.push_back(pending_.back());
        for (auto* events : {&raw_, &free_, &released_}) events->push_back(runtime.device().create_event());
    }
}

void GradientSync::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    if (!microbatch.first) microbatch_.fresh.assign(microbatch.fresh.size(), false);
    gradients_.begin_microbatch(microbatch_.fresh);
}

bool GradientSync::reduces(const Bucket& bucket) const {
    return final(bucket) || (gradients_.memory().accumulators && bucket.num_shards > 1);
}

// Other buckets in this memory, or its gradient of the microbatch before, may not have been reduced yet.
void GradientSync::await_memory(const Bucket& bucket) {
    const std::vector<int>& others = gradients_.overlapping(bucket);
    if (!others.empty())
        capture_.await([this, &others] {
            reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
                for (const int id : others) runtime_.compute().wait(*free_[id]);
            });
        });
    // Gaps between parameters are reduced and stepped with them.
    const auto whole = static_cast<float*>(gradients_.whole(bucket).data);
    for (size_t i = 1; i < bucket.pieces.size(); ++i) {
        const int64_t begin = bucket.pieces[i - 1].in_bucket + bucket.pieces[i - 1].count;
        const int64_t count = bucket.pieces[i].in_bucket - begin;
        if (count > 0)
            runtime_.ops().fill({.x = Tensor(whole + begin, DType::f32, {count}), .value = 0.0f},
                                runtime_.compute());
    }
}

const Bucket* GradientSync::ready(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!reduces(bucket) || --pending_[bucket.id] > 0) return nullptr;
    pending_[bucket.id] = static_cast<int>(bucket.pieces.size());
    if (when_ == Launch::ready) runtime_.compute().record(*raw_[bucket.id]);
    if (timeline_) timeline_->ready(runtime_.compute(), bucket.id);
    return &bucket;
}

const Bucket* GradientSync::released(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!final(bucket) || --unreleased_[bucket.id] > 0) return nullptr;
    unreleased_[bucket.id] = static_cast<int>(bucket.pieces.size());
    if (awaits_release_) runtime_.compute().record(*released_[bucket.id]);
    return &bucket;
}

void GradientSync::reduce(const Bucket& bucket) {
    Stream& stream = runtime_.reduce();
    if (timeline_) timeline_->mark(stream, Phase::reduce, bucket.id);
    if (when_ == Launch::ready) stream.wait(*raw_[bucket.id]);
    reducer_.reduce(bucket, microbatch_.fresh[static_cast<size_t>(bucket.group)], final(bucket), stream);
    if (gradients_.memory().accumulators) stream.record(*free_[bucket.id]);
}

void GradientSync::stepped(const Bucket& bucket, Stream& stream) {
    if (!gradients_.memory().accumulators) stream.record(*free_[bucket.id]);
}

}  // namespace speedrun
