#include "train/model/nodes/pair_gate.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

PairGate::PairGate(const Ports& ports, const Options& options)
    : Node(Cost::pointwise),
      y_(writes({.value = ports.y, .in_backward = true})),
      x_(reads({.value = ports.x, .gradient = GradientRule::added, .in_backward = true})),
      z_(reads({.value = ports.z, .gradient = GradientRule::added, .in_backward = true})),
      weight_(uses(ports.weight, true)),
      options_(options),
      beside_(
          needs({.rows = options.tokens, .columns = 2 * options.columns, .forward = true, .backward = true})),
      gradient_(needs(
          {.rows = options.tokens, .columns = 2 * options.columns, .forward = false, .backward = true})) {}

std::string PairGate::describe(const NodeGraph& graph) const {
    return fmt::format("gate {} + {} -> {} of {} and {}", options_.columns, options_.columns,
                       graph.width_of(value_of(y_)), graph.local_name(value_of(x_)),
                       graph.local_name(value_of(z_)));
}

Tensor PairGate::beside(const Call& call) const {
    const int64_t columns = options_.columns;
    const Tensor both = call(beside_);
    copy_rows(call, both.column_slice(0, columns), call(x_).column_slice(0, columns));
    copy_rows(call, both.column_slice(columns, columns), call(z_).column_slice(0, columns));
    return both;
}

void PairGate::forward(const Call& call) const {
    call.ops.narrow_linear_forward({.y = call(y_),
                                    .x = beside(call),
                                    .weight = call(weight_),
                                    .scale = 1,
                                    .activation = GateActivation::two_sigmoid},
                                   call.stream);
}

void PairGate::backward(const Call& call) const {
    const Tensor both = beside(call), gradient = call(gradient_);
    contribute(
        [&](const ParameterGradient& dw) {
            call.ops.narrow_linear_backward({.dx = gradient,
                                             .dweight = dw.tensor,
                                             .dy = call.gradient(y_),
                                             .y = call(y_),
                                             .x = both,
                                             .weight = call(weight_),
                                             .scale = 1,
                                             .activation = GateActivation::two_sigmoid,
                                             .accumulate_x = false,
                                             .accumulate = dw.adds},
                                            call.stream);
        },
        call.of(weight_));
    int64_t first = 0;
    for (const In of : {x_, z_}) {
        const ValueGradient given = call.gradient(of);
        const Tensor part = gradient.column_slice(first, options_.columns);
        first += options_.columns;
        if (!given.tensor.present()) continue;
        // The gradient is zero in columns that the gate does not read.
        if (!given.adds) call.ops.fill({.x = given.tensor, .value = 0}, call.stream);
        const Tensor columns = given.tensor.column_slice(0, options_.columns);
        call.ops.add({.y = columns, .x = columns, .z = part}, call.stream);
    }
}

}  // namespace speedrun
