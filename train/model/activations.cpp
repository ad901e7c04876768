#include "train/model/activations.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

Tensor Activations::make(Runtime& runtime, const std::string& name, DType dtype,
                         std::initializer_list<int64_t> dims, MemoryCategory category) {
    const int64_t bytes = Tensor(nullptr, dtype, dims).bytes();
    buffers_.emplace_back(runtime.device(), name, category, bytes);
    return buffers_.back().tensor(dtype, dims);
}

Activations::Activations(const ModelConfig& model, const MemoryConfig& memory, int64_t tokens,
                         Runtime& runtime)
    : kept_(memory.activation_checkpointing == Checkpointing::full ? Origin::input : Origin::product),
      num_checkpointed_(memory.num_checkpointed_blocks(model.num_layers)) {
    const int64_t T = tokens, C = model.model_dim, F = model.mlp_ratio * C, V = model.padded_vocab_size();
    const DType real = runtime.real();
    const auto f32 = [&](const std::string& name, std::initializer_list<int64_t> dims) {
        return make(runtime, name, DType::f32, dims);
    };
    const auto act = [&](const std::string& name, std::initializer_list<int64_t> dims) {
        return make(runtime, name, real, dims);
    };
    const auto ids = [&](const std::string& name) {
        return make(runtime, name, DType::i32, {T}, MemoryCategory::data);
    };
    batch = {ids("batch.tokens"), ids("batch.targets"), ids("batch.positions"), ids("batch.first_key"), {}};
    for (int64_t n = 2; n <= model.max_ngram; ++n)
        batch.ngrams.push_back(ids(fmt::format("batch.{}-grams", n)));
    order = make(runtime, "order of ids", DType::i32, {2, T}, MemoryCategory::data);

    embedding = act("embedding", {T, C});
    embedding_mean = f32("embedding_mean", {T});
    embedding_rstd = f32("embedding_rstd", {T});
    first = model.norm_embedding ? act("first", {T, C}) : embedding;

    for (int64_t i = 0; i < model.num_layers; ++i) make_block(i, model, tokens, runtime);
    delta = act("delta", {T, C});
    last = act("last", {T, C});
    final_mean = f32("final_mean", {T});
    final_rstd = f32("final_rstd", {T});
    normed = act("normed", {T, C});
    losses = f32("losses", {T});
    logit_rows = logit_rows_for(T, model, memory.logits_on(runtime.device().kind()));
    logits = act("logits", {logit_rows, V});
    dresidual = act("dresidual", {T, C});
    dnormed = act("dnormed", {T, C});
    if (model.mix_first_embedding) dfirst = act("dfirst", {T, C});
    dqkv = act("dqkv", {T, 3 * C});
    dhidden = act("dhidden", {T, F});
    if (model.value_embeddings > 0) dmixed_value = act("dmixed_value", {T, C});
}

void Activations::make_block(int64_t index, const ModelConfig& model, int64_t tokens, Runtime& runtime) {
    const int64_t T = tokens, C = model.model_dim, F = model.mlp_ratio * C, H = model.num_heads;
    const auto tensor = [&](Origin origin, const std::string& name, DType dtype,
                            std::initializer_list<int64_t> dims) {
        if (index >= num_checkpointed_ || origin <= kept_)
            return make(runtime, fmt::format("blocks.{}.{}", index, name), dtype, dims);
        Tensor& shared = shared_[name];
        if (!shared.present()) shared = make(runtime, "checkpointed blocks." + name, dtype, dims);
        return shared;
    };
    const auto f32 = [&](Origin origin, const char* name, std::initializer_list<int64_t> dims) {
        return tensor(origin, name, DType::f32, dims);
    };
    const auto act = [&](Origin origin, const char* name, std::initializer_list<int64_t> dims) {
        return tensor(origin, name, runtime.real(), dims);
    };
    BlockActivations block;
    block.entered = index > 0 ? act(Origin::input, "entered", {T, C}) : first;
    block.attn_input =
        model.mix_first_embedding ? act(Origin::pointwise, "attn_input", {T, C}) : block.entered;
    block.attn_mean = f32(Origin::pointwise, "attn_mean", {T});
    block.attn_rstd = f32(Origin::pointwise, "attn_rstd", {T});
    block.attn_normed = act(Origin::pointwise, "attn_normed", {T, C});
    block.qkv = act(Origin::product, "qkv", {T, 3 * C});
    block.qk_rstd = f32(Origin::product, "qk_rstd", {T, 2 * H});
    if (index >= model.num_layers - model.value_embeddings) {
        block.value_embedding = act(Origin::input, "value_embedding", {T, C});
        block.mixed_value = act(Origin::pointwise, "mixed_value", {T, C});
    }
    block.attn_out = act(Origin::product, "attn_out", {T, C});
    block.lse = f32(Origin::product, "lse", {H, T});
    block.mlp_input = act(Origin::product, "mlp_input", {T, C});
    block.mlp_mean = f32(Origin::pointwise, "mlp_mean", {T});
    block.mlp_rstd = f32(Origin::pointwise, "mlp_rstd", {T});
    block.mlp_normed = act(Origin::pointwise, "mlp_normed", {T, C});
    block.hidden = act(Origin::product, "hidden", {T, F});
    block.activated = act(Origin::pointwise, "activated", {T, F});
    blocks.push_back(block);
}

}  // namespace speedrun
