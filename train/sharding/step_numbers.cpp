#include "train/sharding/step_numbers.h"

#include <algorithm>

namespace speedrun {

StepNumbers::StepNumbers(const std::vector<int64_t>& counts, Runtime& runtime)
    : runtime_(runtime), begins_{0} {
    for (const int64_t count : counts) begins_.push_back(begins_.back() + count);
    const int64_t bytes = begins_.back() * size_of(DType::f32);
    memory_ = Buffer(runtime.device(), "numbers of a step", MemoryCategory::workspace, bytes);
    for (auto& [memory, copied] : staging_) {
        memory = HostBuffer(runtime.device(), bytes);
        copied = runtime.device().create_event();
    }
}

Tensor StepNumbers::of(size_t group) const {
    return memory_.tensor(DType::f32, {begins_[group + 1] - begins_[group]},
                          begins_[group] * size_of(DType::f32));
}

void StepNumbers::write(const std::vector<std::vector<float>>& values) {
    if (runtime_.device().dry() || memory_.bytes() == 0) return;
    auto& [memory, copied] = staging_[writes_++ % staging_.size()];
    copied->synchronize();
    for (size_t group = 0; group < values.size(); ++group) {
        if (static_cast<int64_t>(values[group].size()) != of(group).numel())
            throw_internal("{} numbers of an optimizer with {}", values[group].size(), of(group).numel());
        std::copy(values[group].begin(), values[group].end(), memory.as<float>() + begins_[group]);
    }
    runtime_.device().copy(memory_.data(), memory.as<float>(), memory_.bytes(), runtime_.optimizer());
    runtime_.optimizer().record(*copied);
}

}  // namespace speedrun
