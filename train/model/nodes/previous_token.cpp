#include "train/model/nodes/previous_token.h"

namespace speedrun {

PreviousToken::PreviousToken(const Ports& ports, const ChunkBorders::Options& options)
    : Node(Cost::product),
      borders_(options),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::written})) {
    const Scratch rows{
        .rows = borders_.chunks(), .columns = borders_.columns(), .forward = true, .backward = true};
    before_ = needs(rows);
    ends_ = needs(rows);
}

void PreviousToken::forward(const Call& call) const {
    const Tensor x = call(x_), y = call(y_), before = call(before_), ends = call(ends_);
    call.ops.fill({.x = flat(before), .value = 0.0f}, call.stream);
    copy_rows(call, ends, borders_.ends(x));
    call.exchange([&](Stream& stream) { borders_.fetch(call, before, ends, stream); });
    call.ops.weighted_sum_forward(
        {.y = y, .terms = {{{.source = x, .shifted = true}}}, .sequence_length = borders_.chunk_length()},
        call.stream);
    copy_rows(call, borders_.starts(y), before);
}

void PreviousToken::backward(const Call& call) const {
    const Tensor dx = call.gradient(x_).tensor, dy = call.gradient(y_), before = call(before_),
                 ends = call(ends_);
    call.ops.weighted_sum_backward(
        {.gradients = {{{.dsource = dx, .accumulate_source = false, .accumulate_coefficient = false}}},
         .dy = dy,
         .terms = {{{.source = dy, .shifted = true}}},  // values are not read
         .sequence_length = borders_.chunk_length()},
        call.stream);
    copy_rows(call, before, borders_.starts(dy));
    call.ops.fill({.x = flat(ends), .value = 0.0f}, call.stream);
    call.exchange([&](Stream& stream) { borders_.send_back(call, ends, before, stream); });
    add_rows(call, borders_.ends(dx), ends);
}

}  // namespace speedrun
