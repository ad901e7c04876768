// The forward pass of the transformer.
#include "train/model/transformer.h"

namespace speedrun {

void Transformer::forward() {
    enter(0, Pass::forward);
    const Tensor positions = config_.position == "learned" ? act_.batch.positions : Tensor{};
    ops_.embedding_forward(act_.embedding, act_.batch.tokens, weight("embed.weight"), positions,
                           optional("position.weight"), stream_);
    if (config_.norm_embedding) {
        ops_.norm_forward(act_.first, {}, act_.embedding_mean, act_.embedding_rstd, act_.embedding, {}, {},
                          {}, norm_kind_, stream_);
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
    BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index);
    const bool has_delta = index > 0;

    if (config_.mix_first_embedding) {
        const std::string norm_name = name + "attn_norm";
        ops_.mix_norm_forward(b.attn_normed, b.attn_input, has_delta ? b.entered : Tensor{}, b.attn_mean,
                              b.attn_rstd, residual, has_delta ? act_.delta : Tensor{},
                              {act_.first, weight(name + "mix")}, optional(norm_name + ".gain"),
                              optional(norm_name + ".bias"), norm_kind_, stream_);
    } else if (has_delta) {
        norm(b.attn_normed, b.attn_input, b.attn_mean, b.attn_rstd, residual, act_.delta, name + "attn_norm");
    } else {
        norm(b.attn_normed, {}, b.attn_mean, b.attn_rstd, residual, {}, name + "attn_norm");
        b.attn_input = residual;
    }

    const int64_t width = config_.model_dim;
    linear(b.qkv, b.attn_normed, name + "attn.qkv");
    const Tensor q = b.qkv.column_slice(0, width), k = b.qkv.column_slice(width, width);
    Tensor v = b.qkv.column_slice(2 * width, width);
    ValueMix value;
    if (b.mixed_value.present()) {
        const Tensor table = weight("value_embed." + std::to_string(value_table(index)) + ".weight");
        ops_.embedding_forward(b.value_embedding, act_.batch.tokens, table, {}, {}, stream_);
        value = {b.mixed_value, v, {b.value_embedding, weight(name + "attn.value_mix")}};
        v = b.mixed_value;
    }
    if (config_.qk_norm || config_.position == "rotary" || value.mixed.present()) {
        ops_.qk_norm_rotary_forward(q, k, b.qk_rstd, rotary_cos_, rotary_sin_, act_.batch.positions, value,
                                    rotary_options(), stream_);
    }
    ops_.attention_forward(b.attn_out, b.lse, q, k, v, act_.batch.first_key, attention_options(), stream_);
    linear(act_.delta, b.attn_out, name + "attn.out");

    norm(b.mlp_normed, b.mlp_input, b.mlp_mean, b.mlp_rstd, b.attn_input, act_.delta, name + "mlp_norm");
    linear(b.hidden, b.mlp_normed, name + "mlp.up");
    ops_.activation_forward(b.activated, b.hidden, activation_, stream_);
    linear(act_.delta, b.activated, name + "mlp.down");
}

void Transformer::loss(Tensor loss_sum, bool accumulate) {
    const CrossEntropyOptions options{.vocab_size = config_.vocab_size,
                                      .softcap = static_cast<float>(config_.logit_softcap)};
    for (int64_t row = 0; row < tokens_; row += act_.logit_rows) {
        const Tensor normed = act_.normed.row_slice(row, act_.logit_rows);
        ops_.matmul(act_.logits, normed, head_weight(), {}, {.transpose_b = true}, stream_);
        const auto piece = [&](Tensor t) {
            return t.reshaped({tokens_, 1}).row_slice(row, act_.logit_rows).reshaped({act_.logit_rows});
        };
        ops_.cross_entropy(piece(act_.losses), {}, act_.logits, piece(act_.batch.targets), options, stream_);
    }
    ops_.sum(loss_sum, act_.losses, accumulate, stream_);
}

Tensor Transformer::logits_of(int64_t row) {
    const Tensor logits = act_.logits.row_slice(0, 1);
    ops_.matmul(logits, act_.normed.row_slice(row, 1), head_weight(), {}, {.transpose_b = true}, stream_);
    return logits;
}

}  // namespace speedrun
