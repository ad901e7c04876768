#include "train/model/gradient_store.h"

#include <algorithm>

namespace speedrun {

GradientStore::GradientStore(const ParameterTable& table, const RegionLayout& layout, Runtime& runtime)
    : table_(table),
      layout_(layout),
      buffer_(runtime.device(), "f32 gradients", MemoryCategory::gradients,
              layout.elements() * size_of(DType::f32)),
      begun_(table.size()),
      ready_(table.size()) {}

Tensor GradientStore::of(const Parameter& p) const {
    if (p.shape.size() != 2) return flat(p);
    return buffer_.tensor(DType::f32, {p.shape[0], p.shape[1]}, layout_.offset_of(p) * size_of(DType::f32));
}

Tensor GradientStore::flat(const Parameter& p) const {
    return buffer_.tensor(DType::f32, {p.numel()}, layout_.offset_of(p) * size_of(DType::f32));
}

Tensor GradientStore::whole(const Region& region) const {
    return buffer_.tensor(DType::f32, {layout_.padded(region)}, region.offset * size_of(DType::f32));
}

Tensor GradientStore::padded_part(const Region& region) const {
    return buffer_.tensor(DType::f32, {region.part},
                          (region.offset + layout_.index() * region.part) * size_of(DType::f32));
}

Tensor GradientStore::part(const Region& region) const {
    return Tensor(padded_part(region).data, DType::f32, {layout_.valid(region)});
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

void GradientStore::ready(const Parameter& p, bool still_read) {
    if (!begun_[p.id]) throw_internal("gradient of {} announced before any contribution", p.name);
    if (ready_[p.id]) throw_internal("gradient of {} announced twice in one microbatch", p.name);
    ready_[p.id] = true;
    if (listener_) listener_(p);
    if (!still_read) released(p);
}

void GradientStore::released(const Parameter& p) {
    if (!ready_[p.id]) throw_internal("{} released before its gradient was announced", p.name);
    if (released_listener_) released_listener_(p);
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
