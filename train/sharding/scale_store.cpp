#include "train/sharding/scale_store.h"

#include <algorithm>
#include <set>

namespace speedrun {

ScaleStore::ScaleStore(const std::vector<KeptScale>& scales, Reducer& reducer, Runtime& runtime)
    : scales_(scales),
      reducer_(reducer),
      runtime_(runtime),
      renewed_(runtime.device().create_event()),
      copied_(runtime.device().create_event()) {
    if (scales_.empty()) return;
    memory_ = Buffer(runtime.device(), "scales of 8-bit numbers", MemoryCategory::workspace,
                     3 * count() * size_of(DType::f32));
    std::vector<float> factors;
    for (const KeptScale& scale : scales_) factors.push_back(scale.factor);
    const Tensor to = at(2 * count(), count());
    runtime.device().copy(to.data, factors.data(), to.bytes(), runtime.compute());
    runtime.compute().synchronize();  // the source may be freed
}

std::vector<int64_t> ScaleStore::switch_steps() const {
    std::set<int64_t> switch_steps{0};
    for (const KeptScale& scale : scales_) switch_steps.insert(scale.exact_steps);
    return {switch_steps.begin(), switch_steps.end()};
}

void ScaleStore::begin_step(int64_t step) {
    set_step(step);
    if (scales_.empty()) return;
    reducer_.meter().time(ExposureMeter::Kind::wait, runtime_.compute(),
                          [&] { runtime_.compute().wait(*renewed_); });
}

int64_t ScaleStore::num_current_scaling() const {
    return std::count_if(scales_.begin(), scales_.end(),
                         [&](const KeptScale& scale) { return step_ < scale.exact_steps; });
}

void ScaleStore::renew() {
    if (scales_.empty()) return;
    Stream& stream = runtime_.reduce();
    const Tensor noted = at(count(), count());
    reducer_.reduce_over_all(noted, Reduction::max, stream);
    stream.wait(*copied_);
    runtime_.ops().renew_scales(
        {.scales = at(0, count()), .amax = noted, .factors = at(2 * count(), count())}, stream);
    stream.record(*renewed_);
}

void ScaleStore::reset(Stream& stream) {
    if (scales_.empty()) return;
    runtime_.ops().fill({.x = at(0, count()), .value = 1.0f}, stream);
    runtime_.ops().fill({.x = at(count(), count()), .value = 0.0f}, stream);
}

void ScaleStore::begin_copy(Stream& stream) const {
    if (!scales_.empty()) stream.wait(*renewed_);
}

void ScaleStore::end_copy(Stream& stream) {
    if (!scales_.empty()) stream.record(*copied_);
}

}  // namespace speedrun
