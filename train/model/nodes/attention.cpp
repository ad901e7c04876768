#include "train/model/nodes/attention.h"

#include <cmath>

#include "train/model/graph/graph.h"
#include "train/model/nodes/norm.h"

namespace speedrun {

QkNormRotary::QkNormRotary(const Ports& ports, const RotaryOptions& options, bool apart)
    : Node(Cost::pointwise),
      q_(writes({.value = ports.q, .in_backward = true})),
      k_(writes({.value = ports.k, .in_backward = true})),
      rstd_(writes({.value = ports.rstd, .in_backward = true})),
      projected_q_(
          reads({.value = ports.projected_q, .gradient = GradientRule::written, .in_place = !apart})),
      projected_k_(
          reads({.value = ports.projected_k, .gradient = GradientRule::written, .in_place = !apart})),
      cos_(reads({.value = ports.tables.cos, .in_backward = true})),
      sin_(reads({.value = ports.tables.sin, .in_backward = true})),
      positions_(reads({.value = ports.tables.positions, .in_backward = true})),
      options_(options),
      apart_(apart),
      angles_(ports.tables.described) {}

std::string QkNormRotary::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{}{}{} {} x {}{}{}", options_.normalize ? "QK-norm" : "",
                       options_.normalize && options_.rotate ? ", " : "", options_.rotate ? "rotary" : "",
                       options_.num_heads, options_.head_dim, angles_,
                       options_.normalize ? described_epsilon(options_.epsilon) : "");
}

void QkNormRotary::enqueue(const Call& call, const ValueMix& value) const {
    call.ops.qk_norm_rotary_forward({.q = call(q_),
                                     .k = call(k_),
                                     .from_q = apart_ ? call(projected_q_) : Tensor{},
                                     .from_k = apart_ ? call(projected_k_) : Tensor{},
                                     .rstd = call(rstd_),
                                     .cos = call(cos_),
                                     .sin = call(sin_),
                                     .position = call(positions_),
                                     .value = value,
                                     .options = options_},
                                    call.stream);
}

void QkNormRotary::backward(const Call& call) const {
    const Tensor dq = call.gradient(q_), dk = call.gradient(k_);
    call.ops.qk_norm_rotary_backward({.dq = apart_ ? call.gradient(projected_q_).tensor : dq,
                                      .dk = apart_ ? call.gradient(projected_k_).tensor : dk,
                                      .from_dq = apart_ ? dq : Tensor{},
                                      .from_dk = apart_ ? dk : Tensor{},
                                      .q = call(q_),
                                      .k = call(k_),
                                      .rstd = call(rstd_),
                                      .cos = call(cos_),
                                      .sin = call(sin_),
                                      .position = call(positions_),
                                      .options = options_},
                                     call.stream);
}

RotaryOfInputs QkNormRotary::of_inputs(const Call& call) const {
    return {.normalize = options_.normalize,
            .rotate = options_.rotate,
            .rstd = call(rstd_),
            .cos = call(cos_),
            .sin = call(sin_),
            .position = call(positions_)};
}

Attention::Attention(const Ports& ports, const AttentionOptions& options, int64_t rows_of_token)
    : Node(Cost::product),
      out_(writes({.value = ports.out, .in_backward = true})),
      lse_(writes({.value = ports.lse, .in_backward = true})),
      q_(reads({.value = ports.q, .gradient = GradientRule::written, .in_backward = true})),
      k_(reads({.value = ports.k, .gradient = GradientRule::written, .in_backward = true})),
      v_(reads({.value = ports.v, .gradient = GradientRule::written, .in_backward = true})),
      first_key_(reads({.value = ports.first_key, .in_backward = true})),
      place_(reads({.value = ports.place, .in_backward = true})),
      options_(options),
      rows_of_token_(rows_of_token) {}

Tensor Attention::rows_of(const Tensor& x) const {
    if (rows_of_token_ == 1) return x;
    return x.reshaped({x.rows() * rows_of_token_, x.cols() / rows_of_token_});
}

HeadWidths Attention::widths(const NodeGraph& graph) const {
    return {options_.head_dim, graph.width_of(value_of(v_)) / (options_.num_heads * rows_of_token_)};
}

std::string Attention::describe(const NodeGraph& graph) const {
    std::string text = fmt::format("attention {} {}x {}", options_.num_heads,
                                   rows_of_token_ == 2 ? "pairs " : "", options_.head_dim);
    if (const auto [of_q, of_v] = widths(graph); of_v != of_q) text += fmt::format("/{}", of_v);
    if (options_.window > 0) text += fmt::format(", window {}", options_.window);
    // The default scale, 1/√D (Vaswani et al. 2017, section 3.2.1), is not mentioned.
    const float usual = static_cast<float>(1 / std::sqrt(static_cast<double>(options_.head_dim)));
    if (options_.scale != usual) text += fmt::format(", scale {:.4g}", options_.scale);
    if (options_.documents) text += ", within documents";
    return text;
}

void Attention::forward(const Call& call) const {
    const Tensor lse = call(lse_), first_key = call(first_key_);
    call.ops.attention_forward({.o = rows_of(call(out_)),
                                .lse = lse.reshaped({options_.num_heads, lse.numel() / options_.num_heads}),
                                .q = rows_of(call(q_)),
                                .k = rows_of(call(k_)),
                                .v = rows_of(call(v_)),
                                .first_key = first_key.reshaped({first_key.numel()}),
                                .place = call(place_),
                                .options = options_},
                               call.stream);
}

void Attention::backward_of(const Call& call, const RotaryOfInputs& rotary) const {
    const Tensor lse = call(lse_), first_key = call(first_key_);
    call.ops.attention_backward({.dq = rows_of(call.gradient(q_).tensor),
                                 .dk = rows_of(call.gradient(k_).tensor),
                                 .dv = rows_of(call.gradient(v_).tensor),
                                 .dout = rows_of(call.gradient(out_)),
                                 .o = rows_of(call(out_)),
                                 .lse = lse.reshaped({options_.num_heads, lse.numel() / options_.num_heads}),
                                 .q = rows_of(call(q_)),
                                 .k = rows_of(call(k_)),
                                 .v = rows_of(call(v_)),
                                 .first_key = first_key.reshaped({first_key.numel()}),
                                 .place = call(place_),
                                 .rotary = rotary,
                                 .options = options_},
                                call.stream);
}

}  // namespace speedrun
