// The forward pass of the transformer.
#include "train/model/transformer.h"

namespace speedrun {

void Transformer::forward() {
    enter(0, Pass::forward);
    const Tensor positions = config_.position == PositionKind::learned ? act_.batch.positions : Tensor{};
    ops_.embedding_forward({.out = act_.embedding,
                            .index = act_.batch.tokens,
                            .table = weight("embed.weight"),
                            .position = positions,
                            .position_table = optional("position.weight")},
                           stream_);
    for (const Tensor& rows : act_.batch.ngrams) {
        const Tensor gathered = act_.delta;  // free until the first block
        ops_.embedding_forward({.out = gathered, .index = rows, .table = weight("ngram_embed.weight")},
                               stream_);
        ops_.add({.y = act_.embedding, .x = act_.embedding, .z = gathered}, stream_);
    }
    if (config_.norm_embedding) {
        ops_.norm_forward({.y = act_.first,
                           .mean = act_.embedding_mean,
                           .rstd = act_.embedding_rstd,
                           .x = act_.embedding,
                           .kind = norm_kind_},
                          stream_);
    }
    Tensor residual = act_.first;
    for (int64_t i = 0; i < config_.num_layers; ++i) {
        enter(static_cast<int>(i) + 1, Pass::forward);
        forward_block(i, residual);
        residual = act_.blocks[i].mlp_input;  // to which `delta`, the MLP's output, is still to be added
    }
    enter(static_cast<int>(config_.num_layers) + 1, Pass::forward);
    if (config_.num_layers > 0) {
        norm(act_.normed, act_.last, act_.final_mean, act_.final_rstd, residual, act_.delta, "final_norm");
    } else {
        norm(act_.normed, {}, act_.final_mean, act_.final_rstd, residual, {}, "final_norm");
    }
}

// `residual` is the stream before the previous block's MLP output, which waits in `delta` (none before block
// 0). Its addition is fused with the norm that reads the sum.
void Transformer::forward_block(int64_t index, Tensor residual) {
    const BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index);
    attention_norm(index, residual, index > 0 ? act_.delta : Tensor{});
    if (b.value_embedding.present()) {
        const Tensor table = weight("value_embed." + std::to_string(value_table(index)) + ".weight");
        ops_.embedding_forward({.out = b.value_embedding, .index = act_.batch.tokens, .table = table},
                               stream_);
    }
    attention(index);
    norm(b.mlp_normed, b.mlp_input, b.mlp_mean, b.mlp_rstd, b.attn_input, act_.delta, name + "mlp_norm");
    linear(b.hidden, b.mlp_normed, name + "mlp.up");
    ops_.activation_forward({.y = b.activated, .x = b.hidden, .activation = activation_}, stream_);
    linear(act_.delta, b.activated, name + "mlp.down");
}

// The block's activations as forward made them, bit by bit, from those that a checkpointed block keeps. A sum
// was rounded before forward went on from it, so a norm that starts from the kept sum gives the same.
void Transformer::recompute_block(int64_t index) {
    const BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index);
    const int64_t flops_before = ops_.flops();
    attention_norm(index, b.entered, {});
    if (act_.keeps_products()) {
        if (b.mixed_value.present()) {
            const RotaryOptions mix_alone{.num_heads = config_.num_heads, .head_dim = config_.head_dim()};
            ops_.qk_norm_rotary_forward(
                {.q = query(b.qkv), .k = key(b.qkv), .value = value_mix(index), .options = mix_alone},
                stream_);
        }
        norm(b.mlp_normed, {}, b.mlp_mean, b.mlp_rstd, b.mlp_input, {}, name + "mlp_norm");
    } else {
        attention(index);
        norm(b.mlp_normed, b.mlp_input, b.mlp_mean, b.mlp_rstd, b.attn_input, act_.delta, name + "mlp_norm");
        linear(b.hidden, b.mlp_normed, name + "mlp.up");
    }
    ops_.activation_forward({.y = b.activated, .x = b.hidden, .activation = activation_}, stream_);
    recomputed_flops_ += ops_.flops() - flops_before;
}

void Transformer::attention_norm(int64_t index, Tensor residual, Tensor delta) {
    const BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index) + "attn_norm";
    const Tensor entered = delta.present() ? b.entered : Tensor{};
    if (config_.mix_first_embedding) {
        ops_.mix_norm_forward({.y = b.attn_normed,
                               .sum = b.attn_input,
                               .entered = entered,
                               .mean = b.attn_mean,
                               .rstd = b.attn_rstd,
                               .x = residual,
                               .delta = delta,
                               .mix = {act_.first, weight(block_name(index) + "mix")},
                               .gain = optional(name + ".gain"),
                               .bias = optional(name + ".bias"),
                               .kind = norm_kind_},
                              stream_);
    } else {
        norm(b.attn_normed, entered, b.attn_mean, b.attn_rstd, residual, delta, name);
    }
}

// From what attention's norm gave to `delta`, which its output leaves in.
void Transformer::attention(int64_t index) {
    const BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index);
    linear(b.qkv, b.attn_normed, name + "attn.qkv");
    const Tensor q = query(b.qkv), k = key(b.qkv);
    const ValueMix mix = value_mix(index);
    const bool mixed = mix.mixed.present();
    if (config_.qk_norm || config_.position == PositionKind::rotary || mixed) {
        ops_.qk_norm_rotary_forward({.q = q,
                                     .k = k,
                                     .rstd = b.qk_rstd,
                                     .cos = rotary_cos_,
                                     .sin = rotary_sin_,
                                     .position = act_.batch.positions,
                                     .value = mix,
                                     .options = rotary_options()},
                                    stream_);
    }
    ops_.attention_forward({.o = b.attn_out,
                            .lse = b.lse,
                            .q = q,
                            .k = k,
                            .v = mixed ? b.mixed_value : value(b.qkv),
                            .first_key = act_.batch.first_key,
                            .options = attention_options()},
                           stream_);
    linear(act_.delta, b.attn_out, name + "attn.out");
}

ValueMix Transformer::value_mix(int64_t index) const {
    const BlockActivations& b = act_.blocks[index];
    if (!b.mixed_value.present()) return {};
    return {b.mixed_value, value(b.qkv), {b.value_embedding, weight(block_name(index) + "attn.value_mix")}};
}

void Transformer::loss(Tensor loss_sum, bool accumulate) {
    for (int64_t row = 0; row < tokens_; row += act_.logit_rows) {
        const Tensor normed = act_.normed.row_slice(row, act_.logit_rows);
        ops_.matmul({.c = act_.logits, .a = normed, .b = head_weight(), .transpose_b = true}, stream_);
        const auto piece = [&](Tensor t) {
            return t.reshaped({tokens_, 1}).row_slice(row, act_.logit_rows).reshaped({act_.logit_rows});
        };
        ops_.cross_entropy({.losses = piece(act_.losses),
                            .logits = act_.logits,
                            .targets = piece(act_.batch.targets),
                            .vocab_size = config_.vocab_size,
                            .softcap = static_cast<float>(config_.logit_softcap)},
                           stream_);
    }
    ops_.sum({.out = loss_sum, .x = act_.losses, .accumulate = accumulate}, stream_);
}

Tensor Transformer::logits_of(int64_t row) {
    const Tensor logits = act_.logits.row_slice(0, 1);
    ops_.matmul({.c = logits, .a = act_.normed.row_slice(row, 1), .b = head_weight(), .transpose_b = true},
                stream_);
    return logits;
}

}  // namespace speedrun
