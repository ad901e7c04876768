#include "train/model/transformer.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "train/model/nodes/fusions.h"

namespace speedrun {

namespace {

// The head's product runs on this many rows at a time. Each time reads all of the head three times and its
// gradient twice: 64 rows of a 50k vocabulary, whose logits would stay in a processor's cache, took more than
// twice as long for a step's tokens as 1024.
int64_t logit_rows_for(int64_t tokens, const ModelConfig& model, int64_t logits_at_once) {
    int64_t rows = std::max<int64_t>(64, logits_at_once / model.padded_vocab_size());
    rows = std::min(rows, tokens);
    while (tokens % rows != 0) --rows;  // equal chunks: one shape of product
    return rows;
}

// The first n blocks are checkpointed. The last of them keeps all: backward comes to it first, when nothing
// that it could make room for is needed yet.
Retained retained_of(const NodeGraph& graph, const MemoryConfig& memory) {
    Retained retained(static_cast<size_t>(graph.num_units()));
    const Cost most = memory.activation_checkpointing == Checkpointing::full ? Cost::input : Cost::product;
    for (int64_t block = 0; block + 1 < memory.num_checkpointed_blocks(graph.num_units() - 2); ++block)
        retained[static_cast<size_t>(block) + 1] = most;
    return retained;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const BatchShape& batch, Runtime& runtime,
                         const BucketRules& rules, bool documents, const MemoryConfig& memory)
    : config_(config),
      batch_(batch),
      logit_rows_(logit_rows_for(batch.tokens, config, memory.logits_on(runtime.device().kind()))),
      model_(build_model(config_, batch, {.documents = documents, .logit_rows = logit_rows_})),
      table_(model_.table),
      parameters_(table_, rules, runtime),
      fusions_(model_fusions()),
      program_(derive_program(model_.graph, fusions_, retained_of(model_.graph, memory), runtime.real())),
      executor_(model_.graph, program_, table_, parameters_, runtime) {}

void Transformer::loss(Tensor loss_sum, bool accumulate) {
    executor_.loss({.loss_sum = loss_sum, .accumulate_loss = accumulate});
}

void Transformer::loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale,
                                    GradientStore& gradients) {
    executor_.backward({.loss_sum = loss_sum,
                        .accumulate_loss = accumulate,
                        .gradient_scale = gradient_scale,
                        .gradients = &gradients});
}

Tensor Transformer::logits_of(int64_t row) {
    const PassArguments arguments;
    return model_.head->logits_of(executor_.loss_call(arguments), row);
}

void Transformer::put_batch(const Batch& batch, const PutIds& put) const {
    const auto checked_put = [&](ValueId value, std::span<const int32_t> values) {
        const Tensor tensor = executor_.held(value);
        if (tensor.numel() != static_cast<int64_t>(values.size()))
            throw_internal("a batch of {} tokens does not fit {}", values.size(), tensor.describe());
        put(tensor, values);
    };
    checked_put(model_.tokens, batch.tokens);
    if (!batch.targets.empty()) checked_put(model_.targets, batch.targets);
    checked_put(model_.positions, batch.positions);
    checked_put(model_.first_key, batch.first_key);
    if (batch.ngrams.size() != model_.ngrams.size())
        throw_internal("a batch with {} sizes of n-grams, the model embeds {}", batch.ngrams.size(),
                       model_.ngrams.size());
    for (size_t i = 0; i < model_.ngrams.size(); ++i) checked_put(model_.ngrams[i], batch.ngrams[i]);
}

}  // namespace speedrun
