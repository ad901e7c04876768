#include "train/model/nodes/copy.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

Copy::Copy(const Ports& ports)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::written})) {}

std::string Copy::describe(const NodeGraph& graph) const {
    return fmt::format("copy of {}", graph.local_name(value_of(x_)));
}

void Copy::forward(const Call& call) const {
    copy_rows(call, call(y_), call(x_));
}

void Copy::backward(const Call& call) const {
    copy_rows(call, call.gradient(x_).tensor, call.gradient(y_));
}

}  // namespace speedrun
