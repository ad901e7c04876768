#include "train/sharding/parameter_gatherer.h"

#include <algorithm>

namespace speedrun {

ParameterGatherer::ParameterGatherer(const ParameterTable& table, ParameterStore& parameters,
                                     Reducer& reducer, Runtime& runtime, const Updated& updated)
    : layout_(parameters.layout()),
      parameters_(parameters),
      reducer_(reducer),
      runtime_(runtime),
      updated_(updated),
      stages_(table.num_units()),
      fetched_(layout_.all().size(), kNone) {
    if (!active()) return;
    for (const Bucket& bucket : layout_.all()) {
        reads_.push_back(reads_of(bucket, stages_, *layout_.rules().stored_sharded));
        gathered_.push_back(runtime.device().create_event());
    }
    for (int stage = 0; stage < stages_.count(); ++stage)
        stage_reached_.push_back(runtime.device().create_event());
}

int ParameterGatherer::lifetime_at(int id, int stage) const {
    for (size_t i = 0; i < reads_[id].size(); ++i)
        if (reads_[id][i].first <= stage && stage <= reads_[id][i].last) return static_cast<int>(i);
    return kNone;
}

int ParameterGatherer::reach(int unit, Pass pass) {
    const int stage = stages_.of(unit, pass);
    runtime_.compute().record(*stage_reached_[stage]);
    return stage;
}

bool ParameterGatherer::reads(int stage) const {
    return std::any_of(layout_.all().begin(), layout_.all().end(),
                       [&](const Bucket& bucket) { return lifetime_at(bucket.id, stage) != kNone; });
}

void ParameterGatherer::await(int stage) {
    reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(), [&] {
        for (const Bucket& bucket : layout_.all())
            if (lifetime_at(bucket.id, stage) != kNone) runtime_.compute().wait(*gathered_[bucket.id]);
    });
}

void ParameterGatherer::mark_use(int stage, Pass pass) const {
    if (!timeline_) return;
    for (const Bucket& bucket : layout_.all())
        if (lifetime_at(bucket.id, stage) != kNone)
            timeline_->use(runtime_.compute(), pass == Pass::forward ? Phase::forward : Phase::backward,
                           bucket.id);
}

void ParameterGatherer::fetch_missing(int stage) {
    runtime_.gather().wait(*stage_reached_[stage]);
    // A validation ends with forward: another bucket may occupy a gathered bucket's memory by now.
    if (stage == 0 && *layout_.rules().stored_sharded != Reshard::no) forget();
    for (const Bucket& bucket : layout_.all()) {
        const int lifetime = lifetime_at(bucket.id, stage);
        if (lifetime != kNone && fetched_[bucket.id] != lifetime) fetch(bucket, lifetime);
    }
}

void ParameterGatherer::fetch_ahead(int stage) {
    for (const Bucket& bucket : layout_.all()) {
        const int lifetime = lifetime_at(bucket.id, stage + 1);
        if (lifetime == kNone || fetched_[bucket.id] == lifetime || lifetime_at(bucket.id, stage) != kNone)
            continue;
        fetch(bucket, lifetime);
    }
}

void ParameterGatherer::forget() {
    std::fill(fetched_.begin(), fetched_.end(), kNone);
}

void ParameterGatherer::fetch(const Bucket& bucket, int lifetime) {
    Stream& gather = runtime_.gather();
    if (timeline_) timeline_->mark(gather, Phase::gather, bucket.id);
    gather.wait(*updated_[bucket.id]);
    reducer_.gather(bucket, gather);
    gather.record(*gathered_[bucket.id]);
    fetched_[bucket.id] = lifetime;
}

}  // namespace speedrun
