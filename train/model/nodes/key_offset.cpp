#include "train/model/nodes/key_offset.h"

#include "train/model/graph/graph.h"

namespace speedrun {

KeyOffset::KeyOffset(const Ports& ports, const KeyOffsetOptions& options)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y})),
      k_(reads({.value = ports.k, .gradient = Gives::written})),
      options_(options) {}

std::string KeyOffset::describe(const NodeGraph& /*graph*/) const {
    const int64_t pairs = options_.head_dim / 2;
    return fmt::format("{} of {} pairs of k of the token before", pairs - options_.turning_pairs, pairs);
}

void KeyOffset::forward(const Call& call) const {
    call.ops.offset_keys_forward({.y = call(y_), .x = call(k_), .options = options_}, call.stream);
}

void KeyOffset::backward(const Call& call) const {
    call.ops.offset_keys_backward(
        {.dx = call.gradient(k_).tensor, .dy = call.gradient(y_), .options = options_}, call.stream);
}

}  // namespace speedrun
