#include "train/sharding/gradient_sync.h"

namespace speedrun {

GradientSync::GradientSync(const ParameterTable& table, Launch launch, bool awaits_release,
                           const BucketLayout& layout, GradientStore& gradients, Reducer& reducer,
                           Runtime& runtime, Listener listener)
    : when_(launch),
      awaits_release_(awaits_release),
      layout_(layout),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      listener_(std::move(listener)),
      completes_(table.all().size(), kNone),
      microbatch_done_(runtime.device().create_event()) {
    for (const Bucket& bucket : layout.all()) {
        pending_.push_back(static_cast<int>(bucket.pieces.size()));
        unreleased_.push_back(pending_.back());
        for (auto* events : {&raw_, &free_, &released_}) events->push_back(runtime.device().create_event());
    }
    gradients.listen_begin([this](const Bucket& bucket) { await_memory(bucket); });
}

void GradientSync::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    if (!microbatch.first) microbatch_.fresh.assign(microbatch.fresh.size(), false);
    gradients_.begin_microbatch(microbatch_.fresh);
}

// Is a bucket's gradient sent on after this microbatch?
bool GradientSync::syncs(const Bucket& bucket) const {
    return (microbatch_.last && due(bucket)) || (gradients_.memory().accumulators && bucket.parts > 1);
}

// Backward is about to write where other buckets, or the microbatch before, may not have been reduced yet.
void GradientSync::await_memory(const Bucket& bucket) {
    for (const int id : gradients_.sharing(bucket)) runtime_.compute().wait(*free_[id]);
    // Gaps between parameters are reduced and stepped with them.
    const auto whole = static_cast<float*>(gradients_.whole(bucket).data);
    for (size_t i = 1; i < bucket.pieces.size(); ++i) {
        const int64_t begin = bucket.pieces[i - 1].in_bucket + bucket.pieces[i - 1].count;
        const int64_t count = bucket.pieces[i].in_bucket - begin;
        if (count > 0)
            runtime_.ops().fill(Tensor(whole + begin, DType::f32, {count}), 0.0f, runtime_.compute());
    }
}

void GradientSync::ready(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!syncs(bucket)) return;
    completes_[p.id] = --pending_[bucket.id] == 0 ? bucket.id : kNone;
    if (completes_[p.id] == kNone) return;
    pending_[bucket.id] = static_cast<int>(bucket.pieces.size());
    if (when_ == Launch::ready) runtime_.compute().record(*raw_[bucket.id]);
    if (timeline_) timeline_->ready(runtime_.compute(), bucket.id);
}

void GradientSync::released(const Parameter& p) {
    const Bucket& bucket = layout_.bucket_of(p);
    if (!microbatch_.last || !due(bucket) || --unreleased_[bucket.id] > 0) return;
    unreleased_[bucket.id] = static_cast<int>(bucket.pieces.size());
    if (awaits_release_) runtime_.compute().record(*released_[bucket.id]);
    listener_.released(bucket);
}

void GradientSync::reduce(const Parameter& p) {
    const int id = completes_[p.id];
    if (id == kNone || !syncs(layout_[id])) return;
    if (when_ == Launch::after_backward) {
        waiting_.push_back(id);
    } else {
        launch(layout_[id]);
    }
}

void GradientSync::end_microbatch() {
    if (microbatch_.last || waiting_.empty()) return;
    runtime_.compute().record(*microbatch_done_);
    launch_waiting(*microbatch_done_);
}

void GradientSync::launch_waiting(const Event& backward_done) {
    runtime_.reduce().wait(backward_done);
    for (const int id : waiting_) launch(layout_[id]);
    waiting_.clear();
}

void GradientSync::launch(const Bucket& bucket) {
    Stream& stream = runtime_.reduce();
    if (timeline_) timeline_->mark(stream, Phase::reduce, bucket.id);
    if (when_ == Launch::ready) stream.wait(*raw_[bucket.id]);  // otherwise it waits for all of backward
    const bool final = microbatch_.last && due(bucket);
    reducer_.reduce(bucket, microbatch_.fresh[static_cast<size_t>(bucket.group)], final, stream);
    if (gradients_.memory().accumulators) stream.record(*free_[bucket.id]);
    if (final) listener_.reduced(bucket);
}

void GradientSync::stepped(const Bucket& bucket, Stream& stream) {
    if (!gradients_.memory().accumulators) stream.record(*free_[bucket.id]);
}

}  // namespace speedrun
