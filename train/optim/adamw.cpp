#include "train/optim/adamw.h"

namespace speedrun {

Adamw::Adamw(const OptimizerGroupConfig& group, const std::vector<const Bucket*>& members,
             ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : group_(group), parameters_(parameters), gradients_(gradients), runtime_(runtime) {
    int64_t bytes = 0;
    for (const Bucket* bucket : members) {
        offset_[bucket->id] = bytes;
        bytes += 2 * parameters.layout().valid(*bucket) * size_of(DType::f32);
    }
    moments_ = Buffer(runtime.device(), "adamw moments", MemoryCategory::optimizer_state, bytes);
}

void Adamw::begin(const Bucket& bucket, const StepContext& context) {
    if (parameters_.layout().valid(bucket) == 0) return;  // this rank's shard is padding
    runtime_.ops().adamw_step({.parameter = parameters_.compute_shard(bucket),
                               .master = parameters_.master_shard(bucket),
                               .first_moment = moment(bucket, 0),
                               .second_moment = moment(bucket, 1),
                               .grad = gradients_.shard(bucket),
                               .grad_scale = context.grad_scale,
                               .learning_rate = static_cast<float>(group_.lr * context.lr_factor),
                               .beta1 = static_cast<float>(group_.beta1),
                               .beta2 = static_cast<float>(group_.beta2),
                               .epsilon = static_cast<float>(group_.epsilon),
                               .weight_decay = static_cast<float>(group_.weight_decay),
                               .step = context.step + 1},
                              *context.stream);
}

Tensor Adamw::moment(const Bucket& bucket, int which) const {
    const int64_t count = parameters_.layout().valid(bucket);
    return moments_.tensor(DType::f32, {count}, offset_.at(bucket.id) + which * count * size_of(DType::f32));
}

std::vector<StateShard> Adamw::state(const Bucket& bucket) const {
    std::vector<StateShard> shards;
    for (const StateKind& kind : state_kinds())
        shards.push_back({kind, moment(bucket, static_cast<int>(shards.size()))});
    return shards;
}

void Adamw::reset(Stream& stream) {
    runtime_.ops().fill(
        {.x = moments_.tensor(DType::f32, {moments_.bytes() / size_of(DType::f32)}), .value = 0.0f}, stream);
}

}  // namespace speedrun
