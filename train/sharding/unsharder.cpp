#include "train/sharding/unsharder.h"

#include <algorithm>

namespace speedrun {

Unsharder::Unsharder(const ParameterTable& table, ParameterStore& parameters, Reducer& reducer,
                     Runtime& runtime, GraphCapture& capture)
    : layout_(parameters.layout()),
      parameters_(parameters),
      reducer_(reducer),
      runtime_(runtime),
      capture_(capture),
      stages_(table.num_units()),
      here_(layout_.all().size(), kNone) {
    if (!active()) return;
    for (const Bucket& bucket : layout_.all()) {
        reads_.push_back(reads_of(bucket, stages_, *layout_.rules().stored_sharded));
        gathered_.push_back(runtime.device().create_event());
    }
    for (int stage = 0; stage < stages_.count(); ++stage)
        stage_reached_.push_back(runtime.device().create_event());
}

int Unsharder::lifetime_at(int id, int stage) const {
    for (size_t i = 0; i < reads_[id].size(); ++i)
        if (reads_[id][i].first <= stage && stage <= reads_[id][i].last) return static_cast<int>(i);
    return kNone;
}

void Unsharder::enter(int unit, Pass pass, const Updated& updated) {
    const int stage = stages_.of(unit, pass);
    Stream& compute = runtime_.compute();
    // What only the stages before this one read may be overwritten when compute has come here.
    compute.record(*stage_reached_[stage]);
    capture_.on_others([this, stage, &updated] { fetch_missing(stage, updated); });
    const auto reads = [&](const Bucket& bucket) { return lifetime_at(bucket.id, stage) != kNone; };
    if (std::any_of(layout_.all().begin(), layout_.all().end(), reads))
        capture_.await([this, stage] {
            reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
                for (const Bucket& bucket : layout_.all())
                    if (lifetime_at(bucket.id, stage) != kNone)
                        runtime_.compute().wait(*gathered_[bucket.id]);
            });
        });
    for (const Bucket& bucket : layout_.all())
        if (timeline_ && reads(bucket))
            timeline_->use(compute, pass == Pass::forward ? Phase::forward : Phase::backward, bucket.id);
    capture_.on_others([this, stage, &updated] { fetch_ahead(stage, updated); });
}

void Unsharder::fetch_missing(int stage, const Updated& updated) {
    runtime_.gather().wait(*stage_reached_[stage]);
    // A validation ends with forward, so that what is here may be of an earlier stage than memory tells.
    if (stage == 0 && *layout_.rules().stored_sharded != Reshard::no) forget();
    for (const Bucket& bucket : layout_.all()) {
        const int lifetime = lifetime_at(bucket.id, stage);
        if (lifetime != kNone && here_[bucket.id] != lifetime) fetch(bucket, lifetime, *updated[bucket.id]);
    }
}

// What the next stage reads, but never where this one still does.
void Unsharder::fetch_ahead(int stage, const Updated& updated) {
    for (const Bucket& bucket : layout_.all()) {
        const int lifetime = lifetime_at(bucket.id, stage + 1);
        if (lifetime == kNone || here_[bucket.id] == lifetime || lifetime_at(bucket.id, stage) != kNone)
            continue;
        fetch(bucket, lifetime, *updated[bucket.id]);
    }
}

void Unsharder::forget() {
    std::fill(here_.begin(), here_.end(), kNone);
}

void Unsharder::fetch(const Bucket& bucket, int lifetime, const Event& updated) {
    Stream& gather = runtime_.gather();
    if (timeline_) timeline_->mark(gather, Phase::gather, bucket.id);
    gather.wait(updated);
    reducer_.gather(bucket, gather);
    gather.record(*gathered_[bucket.id]);
    here_[bucket.id] = lifetime;
}

}  // namespace speedrun
