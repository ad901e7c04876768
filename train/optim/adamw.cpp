#include "train/optim/adamw.h"

namespace speedrun {

Adamw::Adamw(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
             ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : group_(group), parameters_(parameters), gradients_(gradients), runtime_(runtime) {
    int64_t bytes = 0;
    for (const Region* region : members) {
        offset_[region->id] = bytes;
        bytes += 2 * parameters.layout().valid(*region) * size_of(DType::f32);
    }
    moments_ = Buffer(runtime.device(), "adamw moments", MemoryCategory::optimizer_state, bytes);
}

void Adamw::step(const Region& region, const StepContext& context) {
    const int64_t count = parameters_.layout().valid(region), offset = offset_.at(region.id);
    if (count == 0) return;  // this rank's part is padding
    const AdamwOptions options{.learning_rate = static_cast<float>(group_.lr * context.lr_factor),
                               .beta1 = static_cast<float>(group_.beta1),
                               .beta2 = static_cast<float>(group_.beta2),
                               .epsilon = static_cast<float>(group_.epsilon),
                               .weight_decay = static_cast<float>(group_.weight_decay),
                               .step = context.step + 1};
    runtime_.ops().adamw_step(parameters_.compute_part(region), parameters_.master_part(region),
                              moments_.tensor(DType::f32, {count}, offset),
                              moments_.tensor(DType::f32, {count}, offset + count * size_of(DType::f32)),
                              gradients_.part(region), context.grad_scale, options, *context.stream);
}

void Adamw::reset(Stream& stream) {
    runtime_.ops().fill(moments_.tensor(DType::f32, {moments_.bytes() / size_of(DType::f32)}), 0.0f, stream);
}

}  // namespace speedrun
