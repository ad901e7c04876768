#include "train/model/nodes/head_columns.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

HeadColumns::HeadColumns(const Ports& ports, int64_t heads)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added})),
      heads_(heads) {}

std::string HeadColumns::describe(const NodeGraph& graph) const {
    return fmt::format("first {} of {} columns of {} heads of {}", graph.width_of(value_of(y_)) / heads_,
                       graph.width_of(value_of(x_)) / heads_, heads_, graph.local_name(value_of(x_)));
}

// Returns one row per token and head.
Tensor HeadColumns::by_head(const Tensor& rows) const {
    return rows.reshaped({rows.rows() * heads_, rows.cols() / heads_});
}

void HeadColumns::forward(const Call& call) const {
    const Tensor y = by_head(call(y_));
    copy_rows(call, y, by_head(call(x_)).column_slice(0, y.cols()));
}

void HeadColumns::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (!dx.tensor.present()) return;
    if (!dx.adds) call.ops.fill({.x = flat(dx.tensor), .value = 0}, call.stream);
    const Tensor dy = by_head(call.gradient(y_)), read = by_head(dx.tensor).column_slice(0, dy.cols());
    if (dx.adds)
        add_rows(call, read, dy);
    else
        copy_rows(call, read, dy);
}

}  // namespace speedrun
