#include "train/model/gradient_store.h"

#include <algorithm>

namespace speedrun {

GradientStore::GradientStore(const ParameterTable& table, Runtime& runtime)
    : table_(table), begun_(table.size()), ready_(table.size()) {
    constexpr int64_t kAlignment = 64;
    int64_t bytes = 0;
    for (const Parameter& p : table.all()) {
        offset_.push_back(bytes);
        bytes += (p.numel() * size_of(DType::f32) + kAlignment - 1) / kAlignment * kAlignment;
    }
    buffer_ = Buffer(runtime.device(), "f32 gradients", MemoryCategory::gradients, bytes);
}

Tensor GradientStore::of(const Parameter& p) const {
    if (p.shape.size() == 2) return buffer_.tensor(DType::f32, {p.shape[0], p.shape[1]}, offset_[p.id]);
    return flat(p);
}

Tensor GradientStore::flat(const Parameter& p) const {
    return buffer_.tensor(DType::f32, {p.numel()}, offset_[p.id]);
}

void GradientStore::begin_step() {
    std::fill(begun_.begin(), begun_.end(), false);
    std::fill(ready_.begin(), ready_.end(), false);
}

bool GradientStore::accumulates(const Parameter& p) {
    const bool begun = begun_[p.id];
    begun_[p.id] = true;
    return begun;
}

void GradientStore::ready(const Parameter& p) {
    if (!begun_[p.id]) throw_internal("gradient of {} announced before any contribution", p.name);
    if (ready_[p.id]) throw_internal("gradient of {} announced twice in one microbatch", p.name);
    ready_[p.id] = true;
    if (listener_) listener_(p);
}

void GradientStore::expect_all_ready() {
    std::string missing;
    for (const Parameter& p : table_.all()) {
        if (!ready_[p.id]) missing += (missing.empty() ? "" : ", ") + p.name;
    }
    if (!missing.empty()) throw_internal("no gradient came for: {}", missing);
    std::fill(ready_.begin(), ready_.end(), false);
}

}  // namespace speedrun
