// The backward pass of the transformer. `dresidual` is the gradient of the residual stream on its way down.
// A parameter is announced (gradients.ready) right after its last contribution has been enqueued.
#include "train/model/transformer.h"

namespace speedrun {

void Transformer::loss_and_backward(Tensor loss_sum, bool accumulate, float gradient_scale,
                                    GradientStore& gradients) {
    // Once for all tables that are looked up by token: the blocks' value embeddings and the first one.
    ops_.sort_ids(
        {.order = act_.order, .index = act_.batch.tokens, .limit = table_.find("embed.weight").shape[0]},
        stream_);
    enter(static_cast<int>(config_.num_layers) + 1, Pass::backward);
    backward_head(loss_sum, accumulate, gradient_scale, gradients);
    for (int64_t i = config_.num_layers; i-- > 0;) {
        enter(static_cast<int>(i) + 1, Pass::backward);
        backward_block(i, gradients);
    }
    enter(0, Pass::backward);
    backward_embedding(gradients);
}

// Product, loss and gradient chunk by chunk: logits become their own gradient and are used up at once.
void Transformer::backward_head(Tensor loss_sum, bool accumulate, float gradient_scale,
                                GradientStore& gradients) {
    const Parameter& head = table_.find(head_name());
    for (int64_t row = 0; row < tokens_; row += act_.logit_rows) {
        const Tensor normed = act_.normed.row_slice(row, act_.logit_rows);
        const Tensor dnormed = act_.dnormed.row_slice(row, act_.logit_rows);
        const auto piece = [&](Tensor t) {
            return t.reshaped({tokens_, 1}).row_slice(row, act_.logit_rows).reshaped({act_.logit_rows});
        };
        ops_.matmul({.c = act_.logits, .a = normed, .b = head_weight(), .transpose_b = true}, stream_);
        ops_.cross_entropy({.losses = piece(act_.losses),
                            .dlogits = act_.logits,
                            .logits = act_.logits,
                            .targets = piece(act_.batch.targets),
                            .vocab_size = config_.vocab_size,
                            .softcap = static_cast<float>(config_.logit_softcap),
                            .gradient_scale = gradient_scale},
                           stream_);
        ops_.matmul({.c = gradients.of(head),
                     .a = act_.logits,
                     .b = normed,
                     .transpose_a = true,
                     .accumulate = gradients.accumulates(head)},
                    stream_);
        ops_.matmul({.c = dnormed, .a = act_.logits, .b = head_weight()}, stream_);
    }
    if (!config_.tied_head) gradients.ready(head);
    ops_.sum({.out = loss_sum, .x = act_.losses, .accumulate = accumulate}, stream_);
    const Tensor last = config_.num_layers > 0 ? act_.last : act_.first;
    norm_backward(act_.dresidual, act_.dnormed, last, act_.final_mean, act_.final_rstd, {}, "final_norm",
                  gradients);
}

void Transformer::backward_block(int64_t index, GradientStore& gradients) {
    const BlockActivations& b = act_.blocks[index];
    const std::string name = block_name(index);
    const Tensor dx = act_.dresidual, dy = act_.dnormed;
    if (act_.recomputed(index)) recompute_block(index);  // before any of its parameters is announced

    linear_backward(act_.dhidden, dx, b.activated, name + "mlp.down", gradients);
    ops_.activation_backward(
        {.dx = act_.dhidden, .dy = act_.dhidden, .x = b.hidden, .activation = activation_}, stream_);
    linear_backward(dy, act_.dhidden, b.mlp_normed, name + "mlp.up", gradients);
    norm_backward(dx, dy, b.mlp_input, b.mlp_mean, b.mlp_rstd, dx, name + "mlp_norm", gradients);

    const Tensor q = query(b.qkv), k = key(b.qkv), v = value(b.qkv);
    const Tensor dq = query(act_.dqkv), dk = key(act_.dqkv), dv = value(act_.dqkv);
    linear_backward(dy, dx, b.attn_out, name + "attn.out", gradients);
    const bool mixed = b.mixed_value.present();
    ops_.attention_backward({.dq = dq,
                             .dk = dk,
                             .dv = mixed ? act_.dmixed_value : dv,
                             .dout = dy,
                             .o = b.attn_out,
                             .lse = b.lse,
                             .q = q,
                             .k = k,
                             .v = mixed ? b.mixed_value : v,
                             .first_key = act_.batch.first_key,
                             .options = attention_options()},
                            stream_);
    if (mixed) {
        const Parameter& mix = table_.find(name + "attn.value_mix");
        const Parameter& table = table_.find("value_embed." + std::to_string(value_table(index)) + ".weight");
        const bool accumulate_mix = gradients.accumulates(mix);
        // dy is free here: it takes the gradient of the gathered value embeddings.
        ops_.mix_backward({.dx = dv,
                           .dz = dy,
                           .dcoefficients = gradients.of(mix),
                           .dy = act_.dmixed_value,
                           .x = v,
                           .z = b.value_embedding,
                           .coefficients = parameters_.compute(mix),
                           .accumulate = accumulate_mix,
                           .accumulate_z = false},
                          stream_);
        gradients.ready(mix);
        const bool accumulate_table = gradients.accumulates(table);
        ops_.embedding_backward(
            {.dtable = gradients.of(table), .order = act_.order, .dout = dy, .accumulate = accumulate_table},
            stream_);
        gradients.ready(table);
    }
    if (config_.qk_norm || config_.position == PositionKind::rotary) {
        ops_.qk_norm_rotary_backward({.dq = dq,
                                      .dk = dk,
                                      .q = q,
                                      .k = k,
                                      .rstd = b.qk_rstd,
                                      .cos = rotary_cos_,
                                      .sin = rotary_sin_,
                                      .position = act_.batch.positions,
                                      .options = rotary_options()},
                                     stream_);
    }
    linear_backward(dy, act_.dqkv, b.attn_normed, name + "attn.qkv", gradients);
    if (!config_.mix_first_embedding) {
        norm_backward(dx, dy, b.attn_input, b.attn_mean, b.attn_rstd, dx, name + "attn_norm", gradients);
        return;
    }
    bool accumulate = false;  // the same for the three of them: each has one contribution a microbatch
    const std::string norm_name = name + "attn_norm";
    const Tensor dgain = gradient_of(norm_name + ".gain", accumulate, gradients);
    const Tensor dbias = gradient_of(norm_name + ".bias", accumulate, gradients);
    const Tensor dmix = gradient_of(name + "mix", accumulate, gradients);
    const bool first_contribution = index == config_.num_layers - 1;
    ops_.mix_norm_backward({.dx = dx,
                            .dz = act_.dfirst,
                            .dcoefficients = dmix,
                            .dgain = dgain,
                            .dbias = dbias,
                            .dy = dy,
                            .s = b.attn_input,
                            .entered = b.entered,
                            .mix = {act_.first, weight(name + "mix")},
                            .mean = b.attn_mean,
                            .rstd = b.attn_rstd,
                            .gain = optional(norm_name + ".gain"),
                            .dresidual = dx,
                            .accumulate = accumulate,
                            .accumulate_z = !first_contribution,
                            .kind = norm_kind_},
                           stream_);
    for (const std::string& p : {norm_name + ".gain", norm_name + ".bias", name + "mix"}) {
        if (const Parameter* done = parameter(p)) gradients.ready(*done);
    }
}

void Transformer::backward_embedding(GradientStore& gradients) {
    const Tensor dx = act_.dresidual;
    if (config_.mix_first_embedding && config_.num_layers > 0)
        ops_.add({.y = dx, .x = dx, .z = act_.dfirst}, stream_);
    if (config_.norm_embedding) {
        ops_.norm_backward({.ds = dx,
                            .dy = dx,
                            .s = act_.embedding,
                            .mean = act_.embedding_mean,
                            .rstd = act_.embedding_rstd,
                            .accumulate = false,
                            .kind = norm_kind_},
                           stream_);
    }
    const auto add_gradient = [&](const Parameter& table) {
        const bool accumulate = gradients.accumulates(table);
        ops_.embedding_backward(
            {.dtable = gradients.of(table), .order = act_.order, .dout = dx, .accumulate = accumulate},
            stream_);
    };
    const Parameter& embed = table_.find("embed.weight");
    add_gradient(embed);  // while act_.order is of tokens; announced last, as declared first
    if (const Parameter* ngrams = parameter("ngram_embed.weight")) {
        for (const Tensor& rows : act_.batch.ngrams) {
            ops_.sort_ids({.order = act_.order, .index = rows, .limit = ngrams->shape[0]}, stream_);
            add_gradient(*ngrams);
        }
        gradients.ready(*ngrams);
    }
    if (const Parameter* position = parameter("position.weight")) {
        ops_.sort_ids({.order = act_.order, .index = act_.batch.positions, .limit = position->shape[0]},
                      stream_);
        add_gradient(*position);
        gradients.ready(*position);
    }
    gradients.ready(embed);
}

}  // namespace speedrun
