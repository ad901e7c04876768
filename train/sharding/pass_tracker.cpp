#include "train/sharding/pass_tracker.h"

#include <algorithm>

namespace speedrun {

PassTracker::PassTracker(const ParameterTable& table, const GradientStore& gradients, ParameterId unused)
    : table_(table),
      gradients_(gradients),
      unused_(unused),
      started_(table.size()),
      ready_(table.size()),
      bucket_started_(gradients.layout().all().size()) {}

void PassTracker::begin_pass(const std::vector<bool>& fresh, ParameterId unused) {
    unused_ = unused;
    std::fill(ready_.begin(), ready_.end(), false);
    std::fill(bucket_started_.begin(), bucket_started_.end(), false);
    const bool all = gradients_.memory().reused() || fresh.empty();
    for (const Parameter& p : table_.all())
        if (all || fresh[static_cast<size_t>(gradients_.layout().bucket_of(p).group)]) started_[p.id] = false;
}

void PassTracker::mark_contributions() {
    std::fill(started_.begin(), started_.end(), true);
}

bool PassTracker::is_unused(const Bucket& bucket) const {
    return unused_ != kNoParameter && gradients_.layout().bucket_of(table_[unused_]).id == bucket.id;
}

ParameterGradient PassTracker::begin_gradient(const Parameter& p) {
    if (gradients_.memory().reused()) {
        const Bucket& bucket = gradients_.layout().bucket_of(p);
        if (!bucket_started_[bucket.id]) on_bucket_begin(bucket);
        bucket_started_[bucket.id] = true;
    }
    const bool adds = started_[p.id];
    started_[p.id] = true;
    return {gradients_.of(p), adds};
}

void PassTracker::grad_ready(const Parameter& p, bool still_read) {
    if (!started_[p.id]) throw_internal("gradient of {} announced before any contribution", p.name);
    if (ready_[p.id]) throw_internal("gradient of {} announced twice in one microbatch", p.name);
    ready_[p.id] = true;
    on_grad_ready(p);
    if (!still_read) param_free(p);
}

void PassTracker::param_free(const Parameter& p) {
    if (!ready_[p.id]) throw_internal("{} free before its gradient was announced", p.name);
    on_param_free(p);
}

void PassTracker::end_backward() {
    std::string missing;
    for (const Parameter& p : table_.all()) {
        if (!ready_[p.id] && p.id != unused_) missing += (missing.empty() ? "" : ", ") + p.name;
    }
    if (!missing.empty()) throw_internal("no gradient was announced for: {}", missing);
    std::fill(ready_.begin(), ready_.end(), false);
}

}  // namespace speedrun
