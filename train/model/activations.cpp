#include "train/model/activations.h"

#include <fmt/format.h>

#include <algorithm>

namespace speedrun {

namespace {

// The head's product runs on this many rows at a time, so that the logits (a row of a 50k vocabulary is 100
// kB) stay in cache between the product, the loss and its gradient, and memory does not grow with the batch.
constexpr int64_t kLogitElements = int64_t{1} << 22;

int64_t logit_rows_for(int64_t tokens, int64_t vocab) {
    int64_t rows = std::max<int64_t>(64, kLogitElements / vocab);
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

Activations::Activations(const ModelConfig& model, int64_t tokens, Runtime& runtime) {
    const int64_t T = tokens, C = model.model_dim, F = model.mlp_ratio * C, H = model.num_heads,
                  V = model.padded_vocab_size();
    const DType real = runtime.real();
    const auto f32 = [&](const std::string& name, std::initializer_list<int64_t> dims) {
        return make(runtime, name, DType::f32, dims);
    };
    const auto act = [&](const std::string& name, std::initializer_list<int64_t> dims) {
        return make(runtime, name, real, dims);
    };
    const auto ids = [&](const char* name) {
        return make(runtime, name, DType::i32, {T}, MemoryCategory::data);
    };
    batch = {ids("batch.tokens"), ids("batch.targets"), ids("batch.positions"), ids("batch.first_key")};

    embedding = act("embedding", {T, C});
    embedding_mean = f32("embedding_mean", {T});
    embedding_rstd = f32("embedding_rstd", {T});
    first = model.norm_embedding ? act("first", {T, C}) : embedding;

    for (int64_t i = 0; i < model.num_layers; ++i) {
        const std::string name = fmt::format("blocks.{}.", i);
        BlockActivations block;
        if (model.mix_first_embedding) block.entered = act(name + "entered", {T, C});
        block.attn_input = act(name + "attn_input", {T, C});
        block.attn_mean = f32(name + "attn_mean", {T});
        block.attn_rstd = f32(name + "attn_rstd", {T});
        block.attn_normed = act(name + "attn_normed", {T, C});
        block.qkv = act(name + "qkv", {T, 3 * C});
        block.qk_rstd = f32(name + "qk_rstd", {T, 2 * H});
        if (i >= model.num_layers - model.value_embeddings) {
            block.value_embedding = act(name + "value_embedding", {T, C});
            block.mixed_value = act(name + "mixed_value", {T, C});
        }
        block.attn_out = act(name + "attn_out", {T, C});
        block.lse = f32(name + "lse", {H, T});
        block.mlp_input = act(name + "mlp_input", {T, C});
        block.mlp_mean = f32(name + "mlp_mean", {T});
        block.mlp_rstd = f32(name + "mlp_rstd", {T});
        block.mlp_normed = act(name + "mlp_normed", {T, C});
        block.hidden = act(name + "hidden", {T, F});
        block.activated = act(name + "activated", {T, F});
        blocks.push_back(block);
    }
    delta = act("delta", {T, C});
    last = act("last", {T, C});
    final_mean = f32("final_mean", {T});
    final_rstd = f32("final_rstd", {T});
    normed = act("normed", {T, C});
    losses = f32("losses", {T});
    logit_rows = logit_rows_for(T, V);
    logits = act("logits", {logit_rows, V});
    dresidual = act("dresidual", {T, C});
    dnormed = act("dnormed", {T, C});
    if (model.mix_first_embedding) dfirst = act("dfirst", {T, C});
    dqkv = act("dqkv", {T, 3 * C});
    dhidden = act("dhidden", {T, F});
    if (model.value_embeddings > 0) dmixed_value = act("dmixed_value", {T, C});
}

}  // namespace speedrun
