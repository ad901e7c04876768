#include "train/distributed/gradient_sync.h"

namespace speedrun {

GradientSync::GradientSync(const ParameterTable& table, Launch launch, bool awaits_release,
                           const RegionLayout& layout, GradientStore& gradients, Reducer& reducer,
                           Runtime& runtime, Listener listener)
    : when_(launch),
      awaits_release_(awaits_release),
      layout_(layout),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      listener_(std::move(listener)),
      completes_(table.all().size()),
      microbatch_done_(runtime.device().create_event()) {
    for (const Region& region : layout.all()) {
        pending_.push_back(static_cast<int>(region.pieces.size()));
        unreleased_.push_back(pending_.back());
        for (auto* events : {&raw_, &free_, &released_}) events->push_back(runtime.device().create_event());
    }
    gradients.listen_begin([this](const Region& region) { await_memory(region); });
}

void GradientSync::begin_microbatch(const Microbatch& microbatch) {
    microbatch_ = microbatch;
    if (!microbatch.first) microbatch_.fresh.assign(microbatch.fresh.size(), false);
    gradients_.begin_microbatch(microbatch_.fresh);
}

// Is a region's gradient sent on after this microbatch?
bool GradientSync::syncs(const Region& region) const {
    return (microbatch_.last && due(region)) || (gradients_.memory().accumulators && region.parts > 1);
}

// Backward is about to write where other regions, or the microbatch before, may not have been reduced yet.
void GradientSync::await_memory(const Region& region) {
    for (const int id : gradients_.sharing(region)) runtime_.compute().wait(*free_[id]);
    // Between small parameters lies padding, which is reduced and stepped with them.
    if (region.rows == 0 && region.pieces.size() > 1)
        runtime_.ops().fill(gradients_.whole(region), 0.0f, runtime_.compute());
}

void GradientSync::ready(const Parameter& p) {
    std::vector<int>& completed = completes_[p.id];
    completed.clear();
    for (const int id : layout_.regions_of(p)) {
        if (!syncs(layout_[id]) || --pending_[id] > 0) continue;
        pending_[id] = static_cast<int>(layout_[id].pieces.size());
        if (when_ == Launch::ready) runtime_.compute().record(*raw_[id]);
        if (timeline_) timeline_->ready(runtime_.compute(), id);
        completed.push_back(id);
    }
}

void GradientSync::released(const Parameter& p) {
    const std::vector<int>& regions = layout_.regions_of(p);
    for (auto id = regions.rbegin(); id != regions.rend(); ++id) {
        const Region& region = layout_[*id];
        if (!microbatch_.last || !due(region) || --unreleased_[*id] > 0) continue;
        unreleased_[*id] = static_cast<int>(region.pieces.size());
        if (awaits_release_) runtime_.compute().record(*released_[*id]);
        listener_.released(region);
    }
}

void GradientSync::reduce(const Parameter& p) {
    for (const int id : completes_[p.id]) {
        if (when_ == Launch::after_backward) {
            waiting_.push_back(id);
        } else {
            launch(layout_[id]);
        }
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

void GradientSync::launch(const Region& region) {
    Stream& stream = runtime_.reduce();
    if (timeline_) timeline_->mark(stream, Phase::reduce, region.id);
    if (when_ == Launch::ready) stream.wait(*raw_[region.id]);  // otherwise it waits for all of backward
    const bool final = microbatch_.last && due(region);
    reducer_.reduce(region, microbatch_.fresh[static_cast<size_t>(region.group)], final, stream);
    if (gradients_.memory().accumulators) stream.record(*free_[region.id]);
    if (final) listener_.reduced(region);
}

void GradientSync::stepped(const Region& region, Stream& stream) {
    if (!gradients_.memory().accumulators) stream.record(*free_[region.id]);
}

}  // namespace speedrun
