#include "train/model/transformer.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "kernels/device/error.h"

namespace speedrun {

Transformer::Transformer(const ModelConfig& config, const BatchShape& batch, Runtime& runtime,
                         const BucketRules& rules, bool documents, const MemoryConfig& memory)
    : config_(config),
      tokens_(batch.tokens),
      sequence_length_(batch.sequence_length),
      documents_(documents),
      runtime_(runtime),
      ops_(runtime.ops()),
      stream_(runtime.compute()),
      norm_kind_(config.norm),
      activation_(config.activation),
      table_(config, batch.sequence_length),
      parameters_(table_, rules, runtime),
      act_(config, memory, batch.tokens, runtime) {
    if (config.position == PositionKind::rotary) fill_rotary_tables();
}

void Transformer::fill_rotary_tables() {
    const int64_t half = config_.head_dim() / 2, count = sequence_length_ * half;
    rotary_ = Buffer(runtime_.device(), "rotary tables", MemoryCategory::activations,
                     2 * count * size_of(DType::f32));
    rotary_cos_ = rotary_.tensor(DType::f32, {sequence_length_, half});
    rotary_sin_ = rotary_.tensor(DType::f32, {sequence_length_, half}, count * size_of(DType::f32));
    std::vector<float> host(2 * count);
    for (int64_t position = 0; position < sequence_length_; ++position) {
        for (int64_t i = 0; i < half; ++i) {
            // Su et al. 2021, eq. 15: θ_i = base^(−2i/D).
            const double angle =
                static_cast<double>(position) *
                std::pow(config_.rotary_base, -static_cast<double>(i) / static_cast<double>(half));
            host[position * half + i] = static_cast<float>(std::cos(angle));
            host[count + position * half + i] = static_cast<float>(std::sin(angle));
        }
    }
    runtime_.device().copy(rotary_.data(), host.data(), rotary_.bytes(), stream_);
    stream_.synchronize();  // the host vector ends here
}

void Transformer::put_batch(const Batch& batch, const PutIds& put) const {
    const BatchTensors& to = act_.batch;
    const auto checked_put = [&](const Tensor& tensor, std::span<const int32_t> values) {
        if (tensor.numel() != static_cast<int64_t>(values.size()))
            throw_internal("a batch of {} tokens does not fit {}", values.size(), tensor.describe());
        put(tensor, values);
    };
    checked_put(to.tokens, batch.tokens);
    if (!batch.targets.empty()) checked_put(to.targets, batch.targets);
    checked_put(to.positions, batch.positions);
    checked_put(to.first_key, batch.first_key);
    if (batch.ngrams.size() != to.ngrams.size())
        throw_internal("a batch with {} sizes of n-grams, the model embeds {}", batch.ngrams.size(),
                       to.ngrams.size());
    for (size_t i = 0; i < to.ngrams.size(); ++i) checked_put(to.ngrams[i], batch.ngrams[i]);
}

const Parameter* Transformer::parameter(const std::string& name) const {
    return table_.contains(name) ? &table_.find(name) : nullptr;
}

Tensor Transformer::weight(const std::string& name) const {
    return parameters_.compute(table_.find(name));
}

Tensor Transformer::optional(const std::string& name) const {
    const Parameter* p = parameter(name);
    return p ? parameters_.compute(*p) : Tensor{};
}

std::string Transformer::block_name(int64_t index) const {
    return fmt::format("blocks.{}.", index);
}

AttentionOptions Transformer::attention_options() const {
    return {.sequence_length = sequence_length_,
            .num_heads = config_.num_heads,
            .head_dim = config_.head_dim(),
            .window = config_.window,
            .scale = static_cast<float>(config_.resolved_attention_scale()),
            .documents = documents_};
}

RotaryOptions Transformer::rotary_options() const {
    return {.num_heads = config_.num_heads,
            .head_dim = config_.head_dim(),
            .normalize = config_.qk_norm,
            .rotate = config_.position == PositionKind::rotary};
}

Tensor Transformer::gradient_of(const std::string& name, bool& accumulate, GradientStore& gradients) const {
    const Parameter* p = parameter(name);
    if (!p) return {};
    accumulate = gradients.accumulates(*p);
    return gradients.of(*p);
}

void Transformer::linear(Tensor y, Tensor x, const std::string& name) {
    ops_.matmul({.c = y,
                 .a = x,
                 .b = weight(name + ".weight"),
                 .bias = optional(name + ".bias"),
                 .transpose_b = true},
                stream_);
}

void Transformer::linear_backward(Tensor dx, Tensor dy, Tensor x, const std::string& name,
                                  GradientStore& gradients) {
    bool accumulate = false;
    const Parameter& w = table_.find(name + ".weight");
    const Tensor dw = gradient_of(w.name, accumulate, gradients);
    ops_.matmul({.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = accumulate}, stream_);
    gradients.ready(w, true);
    if (const Parameter* bias = parameter(name + ".bias")) {
        const Tensor db = gradient_of(bias->name, accumulate, gradients);
        ops_.column_sum({.out = db, .x = dy, .accumulate = accumulate}, stream_);
        gradients.ready(*bias);
    }
    // Last: the reduction of dW can start while dx is computed.
    ops_.matmul({.c = dx, .a = dy, .b = parameters_.compute(w)}, stream_);
    gradients.released(w);
}

void Transformer::norm(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta,
                       const std::string& name) {
    ops_.norm_forward({.y = y,
                       .sum = sum,
                       .mean = mean,
                       .rstd = rstd,
                       .x = x,
                       .delta = delta,
                       .gain = optional(name + ".gain"),
                       .bias = optional(name + ".bias"),
                       .kind = norm_kind_},
                      stream_);
}

void Transformer::norm_backward(Tensor dx, Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor dresidual,
                                const std::string& name, GradientStore& gradients) {
    bool accumulate = false;
    const Tensor dgain = gradient_of(name + ".gain", accumulate, gradients);
    const Tensor dbias = gradient_of(name + ".bias", accumulate, gradients);
    ops_.norm_backward({.ds = dx,
                        .dgain = dgain,
                        .dbias = dbias,
                        .dy = dy,
                        .s = x,
                        .mean = mean,
                        .rstd = rstd,
                        .gain = optional(name + ".gain"),
                        .dresidual = dresidual,
                        .accumulate = accumulate,
                        .kind = norm_kind_},
                       stream_);
    for (const char* part : {".gain", ".bias"}) {
        if (const Parameter* p = parameter(name + part)) gradients.ready(*p);
    }
}

}  // namespace speedrun
