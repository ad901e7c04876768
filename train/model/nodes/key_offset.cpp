#include "train/model/nodes/key_offset.h"

#include "train/model/graph/graph.h"

namespace speedrun {

KeyOffset::KeyOffset(const Ports& ports, const KeyOffsetOptions& options,
                     const std::optional<ChunkBorders::Options>& borders)
    : Node(borders ? Cost::product : Cost::pointwise),
      y_(writes({.value = ports.y})),
      k_(reads({.value = ports.k, .gradient = GradientRule::written})),
      options_(options) {
    if (!borders) return;
    borders_.emplace(*borders);
    const auto rows = [&](int64_t of_each_chunk) {
        return needs({.rows = of_each_chunk * borders_->chunks(),
                      .columns = borders_->columns(),
                      .forward = true,
                      .backward = true});
    };
    before_ = rows(1);
    ends_ = rows(1);
    from_ = rows(3);
    to_ = rows(3);
}

std::string KeyOffset::describe(const NodeGraph& /*graph*/) const {
    const int64_t pairs = options_.head_dim / 2;
    return fmt::format("{} of {} pairs of k of the token before", pairs - options_.rotated_pairs, pairs);
}

KeyOffsetOptions KeyOffset::of_length(int64_t rows) const {
    KeyOffsetOptions options = options_;
    options.sequence_length = rows;
    return options;
}

void KeyOffset::forward(const Call& call) const {
    if (borders_) return forward_over_borders(call);
    call.ops.offset_keys_forward({.y = call(y_), .x = call(k_), .options = options_}, call.stream);
}

void KeyOffset::backward(const Call& call) const {
    if (borders_) return backward_over_borders(call);
    call.ops.offset_keys_backward(
        {.dx = call.gradient(k_).tensor, .dy = call.gradient(y_), .options = options_}, call.stream);
}

// Shifts each chunk as if it were a row. Then recomputes its first key as the second in a row of two, after its
// predecessor.
void KeyOffset::forward_over_borders(const Call& call) const {
    const Tensor k = call(k_), y = call(y_), before = call(before_), ends = call(ends_),
                 pairs = call(from_).row_slice(0, 2 * borders_->chunks()),
                 moved = call(to_).row_slice(0, 2 * borders_->chunks());
    copy_rows(call, ends, borders_->ends(k));
    copy_rows(call, before, borders_->starts(k));  // keys at the start of a row are not replaced
    call.begin_exchange([&](Stream& stream) { borders_->fetch(call, before, ends, stream); });
    call.ops.offset_keys_forward({.y = y, .x = k, .options = of_length(borders_->chunk_length())},
                                 call.stream);
    copy_rows(call, strided_rows(pairs, 1, 2), borders_->starts(k));
    call.await_exchange();
    copy_rows(call, strided_rows(pairs, 0, 2), before);
    call.ops.offset_keys_forward({.y = moved, .x = pairs, .options = of_length(2)}, call.stream);
    copy_rows(call, borders_->starts(y), strided_rows(moved, 1, 2));
}

// The gradient of a chunk's first key is that of the middle of three: its predecessor, itself, its successor.
void KeyOffset::backward_over_borders(const Call& call) const {
    const int64_t K = borders_->chunk_length();
    const Tensor dk = call.gradient(k_).tensor, dy = call.gradient(y_), before = call(before_),
                 ends = call(ends_), threes = call(from_), moved = call(to_);
    call.ops.fill({.x = flat(threes), .value = 0.0f}, call.stream);
    copy_rows(call, strided_rows(threes, 1, 3), borders_->starts(dy));
    if (K > 1) copy_rows(call, strided_rows(threes, 2, 3), strided_rows(dy, 1, K));
    call.ops.offset_keys_backward({.dx = moved, .dy = threes, .options = of_length(3)}, call.stream);
    copy_rows(call, before, strided_rows(moved, 0, 3));
    call.ops.fill({.x = flat(ends), .value = 0.0f}, call.stream);
    call.begin_exchange([&](Stream& stream) { borders_->send_back(call, ends, before, stream); });
    call.ops.offset_keys_backward({.dx = dk, .dy = dy, .options = of_length(K)}, call.stream);
    copy_rows(call, borders_->starts(dk), strided_rows(moved, 1, 3));
    if (borders_->has_row_starts())
        add_rows(call, strided_rows(borders_->starts(dk), 0, 2), strided_rows(before, 0, 2));
    call.await_exchange();
    add_rows(call, borders_->ends(dk), ends);
}

}  // namespace speedrun
