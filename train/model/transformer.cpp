#include "train/model/transformer.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun {

namespace {

constexpr int64_t kFp8Unit = 16;  // required by op::ScaledMatmul

// Returns the rows per chunk of the head's matmul. Each chunk reads the head's matrix three times and its gradient
// twice. With a 50k vocabulary, 64 rows per chunk more than doubled a step's time against 1024 rows, even though 64
// rows of logits fit the CPU's cache.
int64_t logit_rows_for(int64_t tokens, const ModelConfig& model, int64_t logits_at_once) {
    int64_t rows = std::max<int64_t>(64, logits_at_once / model.padded_vocab_size());
    rows = std::min(rows, tokens);
    const bool fp8 = model.parts.head.fp8.has_value();
    const int64_t unit = fp8 && tokens % kFp8Unit == 0 ? kFp8Unit : 1;
    rows = rows / unit * unit;
    while (tokens % rows != 0) rows -= unit;  // equal chunks: one matmul shape
    return rows;
}

// The last block keeps all values: backward reads it first, so recomputation would not reduce the peak.
Retained retained_of(const NodeGraph& graph, const MemoryConfig& memory) {
    Retained retained(static_cast<size_t>(graph.num_units()));
    if (memory.activation_checkpointing == Checkpointing::none) return retained;
    const Cost most = memory.activation_checkpointing == Checkpointing::full ? Cost::input : Cost::product;
    for (int64_t block = 0; block + 1 < graph.num_units() - 2; ++block)
        retained[static_cast<size_t>(block) + 1] = most;
    return retained;
}

void require_same_parameters(const ParameterTable& a, const ParameterTable& b) {
    bool same = a.size() == b.size() && a.scales() == b.scales();
    for (int id = 0; same && id < a.size(); ++id)
        same = a[id].name == b[id].name && a[id].numel() == b[id].numel();
    if (!same) throw_internal("models that share parameters have different ones");
}

}  // namespace

Transformer::Derived::Derived(const ModelShape& shape, Runtime& runtime, const TransformerOptions& options)
    : shape(shape),
      logit_rows(logit_rows_for(shape.batch.local_tokens(), shape.config,
                                options.memory.logits_on(runtime.device().kind()))),
      model(
          build_model(shape.config, shape.batch, {.documents = options.documents, .logit_rows = logit_rows})),
      fusions(model_fusions([&](HeadWidths widths) { return runtime.fuses_rotary(widths); })),
      program(derive_program(model.graph, fusions, retained_of(model.graph, options.memory),
                             runtime.compute_dtype(), shape.trains)) {}

Transformer::Transformer(Derived derived, std::shared_ptr<Shared> shared, Runtime& runtime)
    : derived_(std::move(derived)),
      shared_(std::move(shared)),
      runtime_(runtime),
      executor_(derived_.model.graph, derived_.program, shared_->table, shared_->parameters, runtime,
                shared_->values) {}

std::vector<std::unique_ptr<Transformer>> Transformer::make(const std::vector<ModelShape>& shapes,
                                                            Runtime& runtime,
                                                            const TransformerOptions& options) {
    std::vector<Derived> all;
    Sizes sizes;
    for (const ModelShape& shape : shapes) {
        if (shape.config.parts.uses_fp8() && !runtime.has_fp8())
            throw_usage(
                "model: products of 8-bit numbers (fp8) need a GPU of compute capability 8.9 or higher, which this one "
                "({}) is not; set them to null",
                runtime.description());
        all.emplace_back(shape, runtime, options);
        sizes.values = std::max(sizes.values, share_memory(all.back().program).bytes);
        sizes.inputs = std::max(sizes.inputs, all.back().input_bytes());
        require_same_parameters(all.front().model.table, all.back().model.table);
    }
    const auto shared = std::make_shared<Shared>(all.front().model.table, options.rules, sizes, runtime);
    std::vector<std::unique_ptr<Transformer>> models;
    for (Derived& derived : all) models.emplace_back(new Transformer(std::move(derived), shared, runtime));
    return models;
}

void Transformer::loss(Tensor loss_sum, bool accumulate) {
    executor_.loss({.loss_sum = loss_sum, .accumulate_loss = accumulate});
}

void Transformer::loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale) {
    if (!derived_.shape.trains) throw_internal("backward of a model that was made without");
    executor_.backward({.loss_sum = loss_sum,
                        .accumulate_loss = accumulate,
                        .gradient_scale = gradient_scale,
                        .training = true});
}

Tensor Transformer::logits_of(int64_t row) {
    const PassArguments arguments;
    return derived_.model.head->logits_of(executor_.loss_call(arguments), row);
}

template <class T>
int64_t Transformer::put(ValueId value, std::span<const T> values, int64_t offset) {
    const Tensor to = executor_.held(value);
    if (to.numel() != static_cast<int64_t>(values.size()))
        throw_internal("{} values of a batch do not fit {} ({})", values.size(), graph()[value].name,
                       to.describe());
    T* const from = shared_->staging.as<T>() + offset;
    std::copy(values.begin(), values.end(), from);
    runtime_.device().copy(to.data, from, to.bytes(), runtime_.compute());
    return offset + to.numel();
}

void Transformer::put_batch(const Batch& batch, std::span<const float> loss_weights) {
    executor_.begin_batch(batch.chunk_first_keys);
    shared_->staged->synchronize();
    int64_t offset = 0;
    for (const ColumnInput& input : derived_.model.inputs)
        offset = put(input.value, std::span(input.column.of(batch)), offset);
    if (const ValueId weights = derived_.model.loss_weights; weights != kNoValue)
        put(weights, loss_weights, offset);
    runtime_.compute().record(*shared_->staged);
}

int64_t Transformer::Derived::input_bytes() const {
    int64_t bytes = 0;
    for (const Value& value : model.graph.values())
        // f32 has the same size
        if (value.holder == Holder::batch) bytes += value.numel() * size_of(DType::i32);
    return bytes;
}

}  // namespace speedrun
