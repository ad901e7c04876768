#include "train/model/nodes/head.h"

#include <algorithm>

#include "train/comm/communicator.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

Head::Head(const Ports& ports, const HeadOptions& options)
    : Node(Cost::product),
      losses_(writes({.value = ports.losses})),
      x_(reads({.value = ports.x, .gradient = GradientRule::written, .in_backward = true})),
      targets_(reads({.value = ports.targets, .in_backward = true})),
      loss_weights_(reads({.value = ports.loss_weights, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      options_(options),
      logits_(needs({.rows = options.logit_rows, .columns = columns(), .forward = true, .backward = true})) {
    if (options.fp8) need_fp8();
    if (!shared()) return;
    const auto numbers = [&](int64_t ranks) {
        return needs({.rows = ranks * options.logit_rows,
                      .columns = 2,
                      .forward = true,
                      .backward = true,
                      .element = Element::f32});
    };
    part_ = numbers(1);
    parts_ = numbers(options.part.size);
}

void Head::need_fp8() {
    constexpr int64_t kUnit = 16;  // required by op::ScaledMatmul
    const int64_t width = options_.width, rows = options_.logit_rows;
    if (columns() % kUnit != 0 || rows % kUnit != 0)
        throw_usage(
            "model.head.fp8: products of 8-bit numbers take sizes in {}s, not {} columns of logits (of {}, shared by {} "
            "ranks) for {} tokens",
            kUnit, columns(), options_.padded_vocab_size, options_.part.size, rows);
    const auto quantized = [&](int64_t height, int64_t length, Element element) {
        const auto backward = [&](int64_t m, int64_t n, Element type) {
            return needs({.rows = m, .columns = n, .forward = false, .backward = true, .element = type});
        };
        return Quantized{.numbers = backward(height, length, element),
                         .transposed = backward(length, height, element),
                         .scale = backward(1, 1, Element::f32)};
    };
    x8_ = quantized(rows, width, Element::e4m3);
    weight8_ = quantized(columns(), width, Element::e4m3);
    logits8_ = quantized(rows, columns(), Element::e5m2);
}

std::string Head::describe(const NodeGraph& graph) const {
    std::string text = fmt::format("head {} -> {}", graph.width_of(value_of(x_)), options_.padded_vocab_size);
    if (options_.vocab_size < options_.padded_vocab_size)
        text += fmt::format(" ({} tokens)", options_.vocab_size);
    if (shared()) text += fmt::format(", of these {}", columns());
    text += graph.is_shared(uses().front().parameter) ? ", tied" : ", not tied";
    if (options_.fp8) text += ", fp8 in training";
    if (!options_.softcap_text.empty()) text += ", " + options_.softcap_text;
    text += ", cross entropy";
    if (loss_weights_.index >= 0)
        text += fmt::format(" of the next {}{}",
                            graph[value_of(loss_weights_)].extents[0].size - (options_.prefixes ? 1 : 0),
                            options_.prefixes ? " and the prefix" : "");
    return text;
}

std::vector<Node::Sent> Head::sent(const NodeGraph& /*graph*/, bool /*backward*/) const {
    if (!shared()) return {};
    const int64_t numbers = options_.logit_rows * options_.part.size * 2;
    return std::vector<Sent>(
        static_cast<size_t>(options_.num_tokens / options_.logit_rows),
        {.kind = Collective::all_gather,
         .axis = Axis::tensor,
         .elements = numbers,
         .sent_elements = wire_bytes(Collective::all_gather, options_.part.size, numbers),
         .full_precision = true});
}

void Head::multiply(const Call& call, const Chunk& chunk) const {
    call.ops.matmul({.c = call(logits_), .a = chunk.x, .b = call(weight_), .transpose_b = true}, call.stream);
}

void Head::multiply_by_fp8(const Call& call, const Chunk& chunk) const {
    x8_.fill(call, chunk.x, options_.fp8->scale_of_x(options_.width));
    call.ops.scaled_matmul({.c = call(logits_),
                            .a = call(x8_.numbers),
                            .b = call(weight8_.numbers),
                            .scale_a = x8_.scale_in(call),
                            .scale_b = weight8_.scale_in(call)},
                           call.stream);
}

template <class Multiply, class Consume>
void Head::in_chunks(const Call& call, const Multiply& logits_of, const Consume& consume) const {
    const int64_t tokens = options_.num_tokens, rows = options_.logit_rows;
    const auto piece = [&](Tensor t, int64_t first) {
        return t.reshaped({tokens, 1}).row_slice(first, rows).reshaped({rows});
    };
    for (int64_t first = 0; first < tokens; first += rows) {
        const Tensor targets =
            loss_weights_.index < 0 ? piece(call(targets_), first) : call(targets_).column_slice(first, rows);
        const Chunk chunk{.x = call(x_).row_slice(first, rows),
                          .losses = piece(call(losses_), first),
                          .targets = targets,
                          .first = first};
        logits_of(chunk);
        consume(chunk);
    }
}

void Head::cross_entropy(const Call& call, const Chunk& chunk, const LogitGradients& to) const {
    const auto& [dlogits, transposed, scale] = to;
    const Tensor logits = call(logits_), weights = call(loss_weights_);
    const Softcap& softcap = options_.softcap;
    if (!shared()) {
        return call.ops.cross_entropy({.losses = chunk.losses,
                                       .dlogits = dlogits,
                                       .transposed = transposed,
                                       .scale = scale,
                                       .logits = logits,
                                       .targets = chunk.targets,
                                       .weights = weights,
                                       .vocab_size = options_.vocab_size,
                                       .softcap = softcap,
                                       .gradient_scale = call.pass.gradient_scale},
                                      call.stream);
    }
    const int64_t first = options_.part.index * columns();
    const int64_t vocab_size = std::clamp<int64_t>(options_.vocab_size - first, 0, columns());
    const Tensor part = call(part_), parts = call(parts_);
    call.ops.cross_entropy_part({.part = part,
                                 .logits = logits,
                                 .targets = chunk.targets,
                                 .weights = weights,
                                 .first = first,
                                 .vocab_size = vocab_size,
                                 .whole_vocab_size = options_.vocab_size,
                                 .softcap = softcap},
                                call.stream);
    call.exchange([&](Stream& stream) {
        if (call.peers.tensor) call.peers.tensor->all_gather(flat(parts), flat(part), stream);
    });
    call.ops.cross_entropy_of_parts({.losses = chunk.losses,
                                     .dlogits = dlogits,
                                     .transposed = transposed,
                                     .scale = scale,
                                     .logits = logits,
                                     .parts = parts,
                                     .targets = chunk.targets,
                                     .weights = weights,
                                     .first = first,
                                     .vocab_size = vocab_size,
                                     .whole_vocab_size = options_.vocab_size,
                                     .softcap = softcap,
                                     .gradient_scale = call.pass.gradient_scale},
                                    call.stream);
}

void Head::forward(const Call& call) const {
    in_chunks(
        call, [&](const Chunk& chunk) { multiply(call, chunk); },
        [&](const Chunk& chunk) { cross_entropy(call, chunk, {}); });
    call.ops.sum({.out = call.pass.loss_sum, .x = call(losses_), .accumulate = call.pass.accumulate_loss},
                 call.stream);
}

void Head::backward_chunk(const Call& call, const Chunk& chunk, const ParameterGradient& dw,
                          const Tensor& dx) const {
    const Tensor logits = call(logits_);
    call.ops.matmul({.c = dw.tensor, .a = logits, .b = chunk.x, .transpose_a = true, .accumulate = dw.adds},
                    call.stream);
    call.ops.matmul({.c = dx, .a = logits, .b = call(weight_)}, call.stream);
}

void Head::backward_fp8(const Call& call, const ParameterGradient& dw, const Tensor& dx) const {
    call.ops.scaled_matmul({.c = dw.tensor,
                            .a = call(logits8_.transposed),
                            .b = call(x8_.transposed),
                            .scale_a = logits8_.scale_in(call),
                            .scale_b = x8_.scale_in(call),
                            .accumulate = dw.adds},
                           call.stream);
    call.ops.scaled_matmul({.c = dx,
                            .a = call(logits8_.numbers),
                            .b = call(weight8_.transposed),
                            .scale_a = logits8_.scale_in(call),
                            .scale_b = weight8_.scale_in(call)},
                           call.stream);
}

void Head::backward(const Call& call) const {
    const Tensor dx = call.gradient(x_).tensor;
    const bool by_fp8 = options_.fp8.has_value();
    if (by_fp8) {
        weight8_.fill(call, call(weight_), static_cast<float>(options_.fp8->weight_scale));
        // The config's scale is for gradients of the loss sum; the actual gradients are multiplied by the pass's
        // factor.
        const auto scale = static_cast<float>(options_.fp8->gradient_scale) * call.pass.gradient_scale;
        call.ops.fill({.x = call(logits8_.scale), .value = scale}, call.stream);
    }
    const LogitGradients gradients =
        by_fp8 ? LogitGradients{call(logits8_.numbers), call(logits8_.transposed), logits8_.scale_in(call)}
               : LogitGradients{call(logits_), {}, {}};
    contribute(
        [&](ParameterGradient dw) {
            in_chunks(
                call,
                [&](const Chunk& chunk) { by_fp8 ? multiply_by_fp8(call, chunk) : multiply(call, chunk); },
                [&](const Chunk& chunk) {
                    cross_entropy(call, chunk, gradients);
                    const Tensor dx_chunk = dx.row_slice(chunk.first, options_.logit_rows);
                    by_fp8 ? backward_fp8(call, dw, dx_chunk) : backward_chunk(call, chunk, dw, dx_chunk);
                    dw.adds = true;
                });
        },
        call.of(weight_));
    call.ops.sum({.out = call.pass.loss_sum, .x = call(losses_), .accumulate = call.pass.accumulate_loss},
                 call.stream);
}

Tensor Head::logits_of(const Call& call, int64_t token) const {
    const Tensor logits = call(logits_).row_slice(0, 1);
    call.ops.matmul({.c = logits, .a = call(x_).row_slice(token, 1), .b = call(weight_), .transpose_b = true},
                    call.stream);
    return logits;
}

}  // namespace speedrun
