#include "train/model/nodes/head.h"

#include "train/model/graph/graph.h"

namespace speedrun {

Head::Head(const Ports& ports, const HeadOptions& options)
    : Node(Cost::product),
      losses_(writes({.value = ports.losses})),
      x_(reads({.value = ports.x, .gradient = Gives::written, .in_backward = true})),
      targets_(reads({.value = ports.targets, .in_backward = true})),
      loss_weights_(reads({.value = ports.loss_weights, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      logits_(needs({.rows = options.logit_rows,
                     .columns = options.padded_vocab_size,
                     .forward = true,
                     .backward = true})),
      options_(options) {}

std::string Head::describe(const NodeGraph& graph) const {
    std::string text = fmt::format("head {} -> {}", graph.width_of(value_of(x_)), options_.padded_vocab_size);
    if (options_.vocab_size < options_.padded_vocab_size)
        text += fmt::format(" ({} tokens)", options_.vocab_size);
    text += graph.is_shared(uses().front().parameter) ? ", tied" : ", not tied";
    if (options_.softcap > 0) text += fmt::format(", softcap {:g}", options_.softcap);
    text += ", cross entropy";
    if (loss_weights_.index >= 0)
        text += fmt::format(" of the next {}", graph[value_of(loss_weights_)].extents[0].size);
    return text;
}

// chunk(rows of x, first row, rows of losses, rows of targets), after the product of those rows.
template <class Chunk>
void Head::in_chunks(const Call& call, const Chunk& chunk) const {
    const int64_t tokens = options_.num_tokens, rows = options_.logit_rows;
    const auto piece = [&](Tensor t, int64_t first) {
        return t.reshaped({tokens, 1}).row_slice(first, rows).reshaped({rows});
    };
    for (int64_t first = 0; first < tokens; first += rows) {
        const Tensor x = call(x_).row_slice(first, rows);
        call.ops.matmul({.c = call(logits_), .a = x, .b = call(weight_), .transpose_b = true}, call.stream);
        const Tensor targets =
            loss_weights_.index < 0 ? piece(call(targets_), first) : call(targets_).column_slice(first, rows);
        chunk(x, first, piece(call(losses_), first), targets);
    }
}

void Head::forward(const Call& call) const {
    in_chunks(call, [&](const Tensor&, int64_t, const Tensor& losses, const Tensor& targets) {
        call.ops.cross_entropy({.losses = losses,
                                .logits = call(logits_),
                                .targets = targets,
                                .weights = call(loss_weights_),
                                .vocab_size = options_.vocab_size,
                                .softcap = static_cast<float>(options_.softcap)},
                               call.stream);
    });
    call.ops.sum({.out = call.pass.loss_sum, .x = call(losses_), .accumulate = call.pass.accumulate_loss},
                 call.stream);
}

void Head::backward(const Call& call) const {
    const Tensor logits = call(logits_), dx = call.gradient(x_).tensor;
    contribute(
        [&](const ParameterGradient& dw) {
            bool adds = dw.adds;
            in_chunks(call, [&](const Tensor& x, int64_t first, const Tensor& losses, const Tensor& targets) {
                call.ops.cross_entropy({.losses = losses,
                                        .dlogits = logits,
                                        .logits = logits,
                                        .targets = targets,
                                        .weights = call(loss_weights_),
                                        .vocab_size = options_.vocab_size,
                                        .softcap = static_cast<float>(options_.softcap),
                                        .gradient_scale = call.pass.gradient_scale},
                                       call.stream);
                call.ops.matmul(
                    {.c = dw.tensor, .a = logits, .b = x, .transpose_a = true, .accumulate = adds},
                    call.stream);
                call.ops.matmul(
                    {.c = dx.row_slice(first, options_.logit_rows), .a = logits, .b = call(weight_)},
                    call.stream);
                adds = true;
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
