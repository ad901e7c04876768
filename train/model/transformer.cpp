#include "train/model/transformer.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "train/model/build_model.h"
#include "train/model/nodes/fusions.h"

namespace speedrun {

namespace {

constexpr int64_t kFp8Unit = 16;  // of op::ScaledMatmul

// The head's product runs on this many rows at a time. Each time reads all of the head three times and its
// gradient twice: 64 rows of a 50k vocabulary, whose logits would stay in a processor's cache, took more than
// twice as long for a step's tokens as 1024.
int64_t logit_rows_for(int64_t tokens, const ModelConfig& model, int64_t logits_at_once) {
    int64_t rows = std::max<int64_t>(64, logits_at_once / model.padded_vocab_size());
    rows = std::min(rows, tokens);
    const bool fp8 = model.preset == Family::none && model.parts.head.fp8;
    const int64_t unit = fp8 && tokens % kFp8Unit == 0 ? kFp8Unit : 1;
    rows = rows / unit * unit;
    while (tokens % rows != 0) rows -= unit;  // equal chunks: one shape of product
    return rows;
}

// The last block keeps all values: backward reads it first, when no memory that it could free is needed yet.
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
      fusions(model_fusions()),
      program(derive_program(model.graph, fusions, retained_of(model.graph, options.memory), runtime.real(),
                             shape.trains)) {}

Transformer::Transformer(Derived derived, std::shared_ptr<Shared> shared, Runtime& runtime)
    : derived_(std::move(derived)),
      shared_(std::move(shared)),
      executor_(derived_.model.graph, derived_.program, shared_->table, shared_->parameters, runtime,
                shared_->values) {}

std::vector<std::unique_ptr<Transformer>> Transformer::make(const std::vector<ModelShape>& shapes,
                                                            Runtime& runtime,
                                                            const TransformerOptions& options) {
    std::vector<Derived> all;
    int64_t bytes = 0;
    for (const ModelShape& shape : shapes) {
        if (shape.config.spelled_out().uses_fp8() && !runtime.has_fp8())
            throw_usage(
                "model: products of 8-bit numbers (fp8) need a GPU of compute capability 8.9 or higher, which this one "
                "({}) is not; set them to null",
                runtime.description());
        all.emplace_back(shape, runtime, options);
        bytes = std::max(bytes, share_memory(all.back().program).bytes);
        require_same_parameters(all.front().model.table, all.back().model.table);
    }
    const auto shared = std::make_shared<Shared>(all.front().model.table, options.rules, bytes, runtime);
    std::vector<std::unique_ptr<Transformer>> models;
    for (Derived& derived : all) models.emplace_back(new Transformer(std::move(derived), shared, runtime));
    return models;
}

void Transformer::loss(Tensor loss_sum, bool accumulate) {
    executor_.loss({.loss_sum = loss_sum, .accumulate_loss = accumulate});
}

void Transformer::loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale,
                                    GradientStore& gradients) {
    if (!derived_.shape.trains) throw_internal("backward of a model that was made without");
    executor_.backward({.loss_sum = loss_sum,
                        .accumulate_loss = accumulate,
                        .gradient_scale = gradient_scale,
                        .gradients = &gradients,
                        .training = true});
}

Tensor Transformer::logits_of(int64_t row) {
    const PassArguments arguments;
    return derived_.model.head->logits_of(executor_.loss_call(arguments), row);
}

void Transformer::put_targets(const Batch& batch, const PutIds& put) const {
    const Tensor all = executor_.held(derived_.model.targets);
    const Tensor weights = loss_weights();
    const int64_t num_targets = weights.present() ? weights.numel() : 1;
    if (static_cast<int64_t>(batch.further_targets.size()) + 1 != num_targets)
        throw_internal("a batch with {} targets of a token, the loss has {}",
                       batch.further_targets.size() + 1, num_targets);
    for (int64_t k = 0; k < num_targets; ++k) {
        const std::vector<int32_t>& values =
            k == 0 ? batch.targets : batch.further_targets[static_cast<size_t>(k - 1)];
        if (static_cast<int64_t>(values.size()) != tokens())
            throw_internal("a batch of {} targets does not fit {}", values.size(), all.describe());
        put(weights.present() ? all.row_slice(k, 1).reshaped({tokens()}) : all, values);
    }
}

void Transformer::put_batch(const Batch& batch, const PutIds& put, const SeeRows& see) {
    executor_.begin_batch(batch.chunk_first_keys);
    const auto checked_put = [&](ValueId value, std::span<const int32_t> values) {
        const Tensor tensor = executor_.held(value);
        if (tensor.numel() != static_cast<int64_t>(values.size()))
            throw_internal("a batch of {} tokens does not fit {}", values.size(), tensor.describe());
        put(tensor, values);
        if (!see) return;
        for (const RowIds& rows : derived_.model.row_ids)
            if (rows.ids == value) see(table()[rows.table], values);
    };
    checked_put(derived_.model.tokens, batch.tokens);
    if (!batch.targets.empty()) put_targets(batch, put);
    checked_put(derived_.model.positions, batch.positions);
    checked_put(derived_.model.first_key, batch.first_key);
    if (batch.ngrams.size() != derived_.model.ngrams.size())
        throw_internal("a batch with {} sizes of n-grams, the model embeds {}", batch.ngrams.size(),
                       derived_.model.ngrams.size());
    for (size_t i = 0; i < derived_.model.ngrams.size(); ++i)
        checked_put(derived_.model.ngrams[i], batch.ngrams[i]);
    if (derived_.model.sign_rows != kNoValue) checked_put(derived_.model.sign_rows, batch.sign_rows);
    if (const auto& rows = derived_.model.own_tokens) checked_put(rows->own, own_of(*rows, batch.tokens));
    if (const auto& paired = derived_.model.paired) {
        checked_put(paired->positions, in_pairs(batch.positions, 1));
        checked_put(paired->first_key, in_pairs(batch.first_key, 0));
    }
    for (const KeyPlaces& places : derived_.model.key_places) {
        const SeenKeys seen = seen_keys(places, batch);
        checked_put(places.place, seen.last);
        checked_put(places.first_key, seen.first);
    }
}

Transformer::SeenKeys Transformer::seen_keys(const KeyPlaces& places, const Batch& batch) const {
    const int64_t S = derived_.shape.batch.sequence_length, L = derived_.shape.batch.local_length();
    SeenKeys seen;
    for (size_t token = 0; token < batch.positions.size(); ++token) {
        const int64_t row = static_cast<int64_t>(token) / L;
        const auto [first, last] = places.kept.seen(batch.positions[token], batch.first_key[token] % S);
        seen.last.push_back(static_cast<int32_t>(last));
        seen.first.push_back(static_cast<int32_t>(row * places.kept.count() + first));
    }
    return seen;
}

std::vector<int32_t> Transformer::in_pairs(const std::vector<int32_t>& ids, int32_t step) {
    std::vector<int32_t> doubled;
    doubled.reserve(2 * ids.size());
    for (const int32_t id : ids) {
        doubled.push_back(2 * id);
        doubled.push_back(2 * id + step);
    }
    return doubled;
}

std::vector<int32_t> Transformer::own_of(const OwnRows& rows, const std::vector<int32_t>& ids) {
    std::vector<int32_t> own;
    own.reserve(ids.size());
    for (const int32_t id : ids) {
        const int64_t row = id - rows.first;
        own.push_back(static_cast<int32_t>(row >= 0 && row < rows.count ? row : rows.count));
    }
    return own;
}

int64_t Transformer::batch_bytes() const {
    int64_t bytes = 0;
    for (const Value& value : graph().values())
        if (value.holder == Holder::batch) bytes += value.numel() * size_of(DType::i32);  // as wide as f32
    return bytes;
}

}  // namespace speedrun
